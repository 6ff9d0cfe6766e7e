"""Answering: a story, a question about it and an answer; cross-entropy over the answers, scored by accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt
from torch import nn

from weft.data.batch import EOS, UNK, LabelBatch
from weft.data.corpus import Corpus
from weft.data.data_format import DataFormat
from weft.data.formats import Pairs
from weft.data.text_lines import read_lines
from weft.data.tokenizers import RESERVED
from weft.explain.html_parts import meter
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import Predictor
from weft.models.base import Network, Sizes
from weft.models.composition import build_encoder
from weft.models.pooling import MeanPooling
from weft.tasks.answering.data import open_stories, prepare_stories
from weft.tasks.answering.memory_network import MemoryEncoder, MemoryNetwork
from weft.tasks.answering.predictor import AnsweringPredictor
from weft.tasks.base import TaskContext
from weft.tasks.classification.data import make_labelled
from weft.tasks.classification.explanation import probability_table
from weft.tasks.classification.model import Classifier, ClassifierOutput
from weft.tasks.classification.predictor import Label
from weft.tasks.classification.task import LabelTask

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
