"""Classification: a label for each text, cross-entropy, scored by loss, accuracy and macro-averaged F1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import nn

from weft.batch import NO_LABEL, LabelBatch
from weft.config.registry import Among, build
from weft.data.corpus import Corpus, Rows
from weft.data.formats import Pairs
from weft.data.labels import Labels, collate_labels, make_labelled, prepare_labels
from weft.data.tokenizer import RESERVED, has_tokenizers, load_tokenizers, save_tokenizers, train_tokenizer
from weft.errors import DataError
from weft.evaluation.metrics import LabelAccuracy, MacroF1, Metric, score
from weft.inference.classification import ClassificationPredictor
from weft.inference.resolve import Resolved
from weft.models.base import Network, Sizes
from weft.models.classifier import Classifier, Vote
from weft.models.composing import build_encoder
from weft.tasks.base import LOSS, Loss, Measure, Setting, Share
from weft.tasks.text import TextTask

LABELS = "labels.json"


class ClassificationTask(TextTask):
    """Text to label: an encoder, a pooling and a linear layer. The label is the second column of the data.

    Texts are cut after data.max_length tokens.

    pooling: how the encoder's vectors become one
    label_smoothing: share of the probability that is spread evenly over the labels
    dropout: share of the pooled vector that is dropped
    diversity_weight: penalty on hops of a self-attentive pooling that attend to the same tokens (Lin et al. 2017)
    """

    example = "texts.tsv (a text, a tab, a label)"
    measures = (Measure("accuracy", "accuracy"), Measure("macro_f1", "macro F1"), LOSS)
    sentences = (0,)
    counts = "texts"
    inference = "forward"
    steady = True

    def __init__(
        self,
        setting: Setting,
        *,
        pooling: Annotated[dict[str, Any], Among("weft.pooling:POOLINGS")] = {"kind": "mean"},  # noqa: B006
        label_smoothing: Share = 0.0,
        dropout: Share = 0.1,
        diversity_weight: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(setting)
        self.pooling, self.smoothing, self.dropout, self.diversity = pooling, label_smoothing, dropout, diversity_weight
        self.labels: Labels = Labels()

    def check(self, valid: list[Pairs]) -> None:
        for pairs in valid:
            self.labels.check(pairs)

    def reopen(self) -> Sizes:
        self.source, _ = load_tokenizers(self.run, self.config.data.tokenizer)
        self.labels = Labels.load(self.run / LABELS)
        return Sizes(self.source.size)

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        encoder = build_encoder(spec, sizes)
        pooling = build("weft.pooling:POOLINGS", self.pooling, encoder.width, where="task.pooling")
        return Classifier(encoder, pooling, max(1, len(self.labels.names)), self.dropout)

    def vocabularies(self) -> list[str]:
        return [self.source.digest(), *self.labels.names]

    def join(self, models: Sequence[Network]) -> Network:
        return Vote(models)

    def predictor(
        self, model: Network, resolved: Resolved, warn: Callable[[str], None] | None = None
    ) -> ClassificationPredictor:
        longest = self.config.data.max_length
        return ClassificationPredictor(model, self.source, self.labels, resolved, longest=longest, warn=warn)

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        return [LabelAccuracy(), MacroF1(self.labels.names)]

    def collate(
        self, corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False
    ) -> LabelBatch:
        return collate_labels(corpus, rows, budget=budget, rounded=rounded)

    def losses(self, model: nn.Module, batch: LabelBatch, update: int) -> Iterator[Loss]:
        judged, labels = model(batch.source), batch.labels
        total = F.cross_entropy(judged.logits, labels, ignore_index=NO_LABEL, label_smoothing=self.smoothing, reduction="sum")
        right, real = (judged.logits.argmax(-1) == labels).sum(), labels != NO_LABEL
        if "diversity" in judged.extras:
            total = total + self.diversity * judged.extras["diversity"].where(real, 0.0).sum()
        yield Loss(total, real.sum(), {"accuracy": 100 * right})

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        if self.valid is None:
            return {}
        total, said, true = 0.0, [], []
        for batch in self.validation(model):
            logits = model(batch.source).logits.float()
            total += F.cross_entropy(logits, batch.labels, reduction="sum").item()
            said += logits.argmax(-1).tolist()
            true += batch.labels.tolist()
        names = self.labels.names
        found = score([names[label] for label in said], [names[label] for label in true], self.metrics())
        return {"loss": total / len(true), **{each.key: each.value for each in found.values()}}

    @property
    def typical_length(self) -> int:
        return min(256, self.config.data.max_length)

    def describe(self) -> dict[str, Any]:
        facts = {"ids": self.source.size, "labels": len(self.labels.names), "training texts": len(self.train)}
        return facts | ({} if self.valid is None else {"validation texts": len(self.valid)})

    def made_up(self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False) -> LabelBatch:
        """Random texts with the first label."""
        words = np.random.default_rng(length).integers(RESERVED, max(RESERVED + 1, sizes.source), rows * length)
        labels, lengths = np.zeros(rows, np.int64), np.full(rows, length)
        return make_labelled(words, labels, lengths, budget=rows * length, rounded=rounded)

    def learn(self, train: list[Pairs]) -> None:
        """Collects the labels as well."""
        if has_tokenizers(self.run) and (self.run / LABELS).exists():
            return
        data, labels = self.config.data, Labels(label for _, label in chain.from_iterable(train))
        if len(labels.names) < 2:
            found = f"only the label {labels.names[0]!r}" if labels.names else "no label"
            raise DataError(
                f"{', '.join(some.name for some in train)}: there is {found}, and a classifier needs at least two. "
                "The label is the second column; write FILE.tsv#2,1 if it is the first."
            )
        self.tell(f"{len(labels.names):,} labels")
        self.tell_tokenizer()
        tokenizer = train_tokenizer(data.tokenizer, train, size=data.vocabulary, folder=self.cache, start=self.start)
        save_tokenizers(self.run, tokenizer, tokenizer)
        labels.save(self.run / LABELS)

    def encode(self, pairs: list[Pairs], *, training: bool, folder: Path, progress: Callable[[int], None]) -> Corpus:
        data = self.config.data
        return prepare_labels(
            pairs,
            self.source,
            self.labels,
            folder=folder,
            max_length=data.max_length,
            drop_duplicates=data.drop_duplicates and training,
            progress=progress,
        )
