"""Answering: a story, a question about it and an answer; cross-entropy over the answers, scored by accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from pydantic import NonNegativeInt
from torch import nn

from weft.batch import EOS, NO_LABEL, UNK, LabelBatch
from weft.data.corpus import Corpus, Rows
from weft.data.formats import Pairs
from weft.data.labels import Labels, collate_labels, make_labelled
from weft.data.stories import open_stories, prepare_stories
from weft.data.tokenizer import RESERVED, has_tokenizers, load_tokenizers, save_tokenizers, train_tokenizer
from weft.errors import DataError
from weft.evaluation.label_metrics import LabelAccuracy
from weft.evaluation.metrics import Metric, score
from weft.inference.answering import AnsweringPredictor
from weft.inference.resolve import Resolved
from weft.models.base import Network, Sizes
from weft.models.classifier import Classifier
from weft.models.composing import build_encoder
from weft.models.memory_network import MemoryEncoder, MemoryNetwork
from weft.pooling.mean_max import MeanPooling
from weft.tasks.base import LOSS, Loss, Measure, Setting
from weft.tasks.text import TextTask

ANSWERS = "answers.json"
WORDS = 6
"""Words of a typical sentence."""


class AnsweringTask(TextTask):
    """A story and a question to an answer, one of those that occur in training.

    The model is a memory network. Any other model with an encoder reads the story as one text and answers from the mean of its
    memory. Of a story with more than data.max_length tokens, only the latest sentences are read.

    linear_start: updates at the start of training in which the memory network has no softmax (Sukhbaatar et al. 2015)
    """

    example = "stories.jsonl (story, question and answer on each line)"
    commands = ('weft predict {run} "A story. Its end. A question?"', "weft evaluate {run} --data FILES")
    measures = (Measure("accuracy", "accuracy"), LOSS)
    sentences = (0,)
    counts = "questions"
    inference = "forward"

    def __init__(self, setting: Setting, *, linear_start: NonNegativeInt = 0) -> None:
        super().__init__(setting)
        self.linear_start = linear_start
        self.labels = Labels()

    def open(self, spec: str) -> Pairs:
        return open_stories(spec)

    def check(self, valid: list[Pairs]) -> None:
        for pairs in valid:
            self.labels.check(pairs)

    def reopen(self) -> Sizes:
        self.source, _ = load_tokenizers(self.run, self.config.data.tokenizer)
        self.labels = Labels.load(self.run / ANSWERS)
        return Sizes(max(self.source.size, 1 + max(self.answers)), len(self.labels))

    @property
    def answers(self) -> list[int]:
        """The id of each answer: that of the word it is, or one of its own behind the vocabulary."""
        found, free = [], self.source.size
        for ids in self.source.encode_batch(self.labels.names):
            if len(ids) == 1 and ids[0] != UNK:
                found.append(ids[0])
            else:
                found.append(free)
                free += 1
        return found

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        encoder = build_encoder(spec, sizes)
        if isinstance(encoder, MemoryEncoder):
            return MemoryNetwork(encoder, self.answers if self.labels.names else [0])
        return Classifier(encoder, MeanPooling(encoder.width), max(1, len(self.labels)))

    def vocabularies(self) -> list[str]:
        return [self.source.digest(), *self.labels.names]

    def predictor(self, model: Network, resolved: Resolved, warn: Callable[[str], None] | None = None) -> AnsweringPredictor:
        longest = self.config.data.max_length
        return AnsweringPredictor(model, self.source, self.labels, resolved, longest=longest, warn=warn)

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        return [LabelAccuracy()]

    def collate(
        self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False
    ) -> LabelBatch:
        return collate_labels(corpus, rows, self.labels, budget=budget, rounded=rounded)

    def losses(self, model: nn.Module, batch: LabelBatch, update: int) -> Iterator[Loss]:
        if isinstance(model, MemoryNetwork):
            logits = model(batch.source, linear=update <= self.linear_start).logits
        else:
            logits = model(batch.source).logits
        total = F.cross_entropy(logits, batch.labels, ignore_index=NO_LABEL, reduction="sum")
        right, real = (logits.argmax(-1) == batch.labels).sum(), batch.labels != NO_LABEL
        yield Loss(total, real.sum(), {"accuracy": 100 * right})

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        if self.valid is None:
            return {}
        total, said, true = 0.0, [], []
        for batch in self.validation(model):
            logits = model(batch.source).logits.float()
            total += F.cross_entropy(logits, batch.labels, reduction="sum").item()
            said += [self.labels.names[label] for label in logits.argmax(-1).tolist()]
            true += [self.labels.names[label] for label in batch.labels.tolist()]
        found = score(said, true, self.metrics())
        return {"loss": total / len(true), **{each.key: each.value for each in found.values()}}

    @property
    def typical_length(self) -> int:
        return min(64, self.config.data.max_length)

    def describe(self) -> dict[str, Any]:
        facts = {"words": self.source.size, "answers": len(self.labels), "training questions": len(self.train)}
        return facts | ({} if self.valid is None else {"validation questions": len(self.valid)})

    def made_up(self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False) -> LabelBatch:
        """Random stories with the first answer."""
        words = np.random.default_rng(length).integers(RESERVED, max(RESERVED + 1, sizes.source), (rows, length))
        words[:, WORDS::WORDS] = words[:, -1] = EOS
        labels, lengths = np.zeros(rows, np.int64), np.full(rows, length)
        return make_labelled(words.ravel(), labels, lengths, budget=rows * length, rounded=rounded)

    def learn(self, train: list[Pairs]) -> None:
        """Collects the answers as well."""
        if has_tokenizers(self.run) and (self.run / ANSWERS).exists():
            return
        data, labels = self.config.data, Labels(answer for _, answer in chain.from_iterable(train))
        if not labels.names:
            raise DataError(f"{', '.join(some.name for some in train)}: there is no answer to learn.")
        self.tell(f"{len(labels):,} answers; training {data.tokenizer['kind']} tokenizer")
        tokenizer = train_tokenizer(data.tokenizer, train, size=data.vocabulary, folder=self.cache)
        save_tokenizers(self.run, tokenizer, tokenizer)
        labels.save(self.run / ANSWERS)

    def encode(self, pairs: list[Pairs], *, training: bool, folder: Path, progress: Callable[[int], None]) -> Corpus:
        longest = self.config.data.max_length
        return prepare_stories(pairs, self.source, self.labels, folder=folder, max_length=longest, progress=progress)
