"""Answering: a story, a question about it and an answer; cross-entropy over the answers, scored by accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt
from torch import nn

from weft.data.batch import EOS, UNK, LabelBatch, Layout, Source
from weft.data.corpus import Corpus
from weft.data.data_format import DataFormat
from weft.data.formats import Pairs
from weft.data.text_lines import read_lines
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.decoding.search_loop import Cancellation
from weft.explain.html_parts import meter
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import BatchItem, Predictor, pad, refuse
from weft.models.base import Network, Sizes
from weft.models.composition import build_encoder
from weft.models.pooling import MeanPooling
from weft.tasks.base import TaskContext
from weft.tasks.classification.data import Labels, make_labelled
from weft.tasks.classification.explanation import probability_table
from weft.tasks.classification.model import Classifier, ClassifierOutput
from weft.tasks.classification.predictor import NO_PREFIX, Label, LabelPredictor
from weft.tasks.classification.task import LabelTask
from weft_studies.answering.data import encode_stories, open_stories, prepare_stories, read_story
from weft_studies.answering.memory_network import MemoryEncoder, MemoryNetwork


@dataclass(frozen=True)
class Question:
    """The sentences of a story, the question last. attention: whether to add the weights of each hop as an array."""

    sentences: tuple[str, ...]
    attention: bool = False


class AnsweringPredictor(LabelPredictor[Question]):
    """A model that answers questions. It reads the latest `longest` tokens of a story."""

    def __init__(
        self,
        model: Network,
        source: Tokenizer,
        labels: Labels,
        resolved: DecodingOptions,
        *,
        longest: int,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, labels, resolved, warn=warn)
        self.source, self.longest = source, longest

    def parse_input(self, line: str, *, attention: bool = False, **fields: Any) -> Question:
        refuse(fields, NO_PREFIX)
        return Question(tuple(read_story(line)), attention)

    def encode_input(self, inputs: Sequence[Question], first_line: int) -> list[list[BatchItem]]:
        encoded = encode_stories([given.sentences for given in inputs], self.source, self.longest)
        for line, (given, ids) in enumerate(zip(inputs, encoded, strict=True), start=first_line):
            if (read := ids.count(EOS)) < len(given.sentences):
                self.warn(f"line {line} has {len(given.sentences):,} sentences; only the latest {read:,} are read")
            for word in dict.fromkeys(word for sentence in given.sentences for word in self.source.unknown(sentence)):
                self.warn(f"line {line}: the word {word!r} did not occur in training")
        return [[BatchItem(ids)] if ids else [] for ids in encoded]

    def run(self, parts: list[BatchItem], control: Cancellation | None = None) -> list[Label]:
        rows = [part.ids for part in parts]
        judged = self.judge(Source(pad(rows), Layout.padded([len(ids) for ids in rows])))
        results = [self.give(logits, self.source.tokens(ids)) for logits, ids in zip(judged.logits.float().cpu(), rows)]
        if isinstance(self.model, MemoryNetwork) and judged.weights is not None:
            for answer, ids, weights in zip(results, rows, judged.weights.float().cpu(), strict=True):
                seen = min(ids.count(EOS) - 1, weights.size(-1))
                answer.hops = weights[:, :seen].flip(-1).tolist()
        return results

    def join_outputs(self, given: Question, parts: list[BatchItem], results: list[Label]) -> Label:
        if not results:
            return Label("", 0.0)
        (answer,) = results
        if answer.hops:
            seen = len(answer.hops[0])
            answer.facts = list(given.sentences[len(given.sentences) - 1 - seen : -1])
            if given.attention:
                answer.attention["hops"] = np.asarray(answer.hops, np.float32)[:, None]
        return answer


WORDS = 6
"""Words of a typical sentence."""


class AnsweringTask(LabelTask):
    """A story and a question to an answer, one of those that occur in training.

    The model is a memory network. Any other model with an encoder reads the story as one text and answers from the mean of its
    memory. Of a story with more than data.max_length tokens, only the latest sentences are read.

    linear_start: updates at the start of training in which the memory network has no softmax (Sukhbaatar et al. 2015)
    """

    example = "stories.jsonl (story, question and answer on each line)"
    commands = ('weft predict {run} "A story. Its end. A question?"', "weft evaluate {run} --data FILES")
    noun = "answer"
    data_format = DataFormat(open_stories, read_lines)  # a line is a story, in any of the ways that stories are written
    count_unit = "questions"

    def __init__(self, context: TaskContext, *, linear_start: NonNegativeInt = 0) -> None:
        super().__init__(context)
        self.linear_start = linear_start

    def reopen(self) -> Sizes:
        super().reopen()
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

    def predictor(
        self, model: Network, resolved: DecodingOptions, warn: Callable[[str], None] | None = None
    ) -> AnsweringPredictor:
        longest = self.config.data.max_length
        return AnsweringPredictor(model, self.source, self.labels, resolved, longest=longest, warn=warn)

    def explanation(self, predictor: Predictor[Any, Any], prediction: Label, text: str) -> str:
        """The probabilities of answers, and the facts of the story in order, with a bar for each hop."""
        if not prediction.hops:
            return super().explanation(predictor, prediction, text)
        rows = "".join(
            f"<tr><td>{escape(fact)}</td>{''.join(f'<td>{meter(weight)} {weight:.3f}</td>' for weight in weights)}</tr>"
            for fact, *weights in zip(prediction.facts, *prediction.hops, strict=True)
        )
        heads = "".join(f"<th>hop {number}</th>" for number in range(1, len(prediction.hops) + 1))
        facts = f"<table><tr><th>fact</th>{heads}</tr>{rows}</table>\n<p>{escape(text)}</p>\n"
        return probability_table(prediction) + facts

    def judge(self, model: nn.Module, batch: LabelBatch, update: int) -> ClassifierOutput:
        if isinstance(model, MemoryNetwork):
            return model(batch.source, linear=update <= self.linear_start)
        return super().judge(model, batch, update)

    @property
    def typical_length(self) -> int:
        return min(64, self.config.data.max_length)

    def dummy_batch(
        self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False
    ) -> LabelBatch:
        """Random stories with the first answer."""
        words = np.random.default_rng(length).integers(RESERVED, max(RESERVED + 1, sizes.source), (rows, length))
        words[:, WORDS::WORDS] = words[:, -1] = EOS
        labels, lengths = np.zeros(rows, np.int64), np.full(rows, length)
        return make_labelled(words.ravel(), labels, lengths, budget=rows * length, rounded=rounded)

    def encode(self, pairs: list[Pairs], *, training: bool, folder: Path, progress: Callable[[int], None]) -> Corpus:
        longest = self.config.data.max_length
        return prepare_stories(pairs, self.source, self.labels, folder=folder, max_length=longest, progress=progress)
