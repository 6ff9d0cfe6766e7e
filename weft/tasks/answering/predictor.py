"""Answering: a story and a question to an answer, with the facts that the model looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.data.batch import EOS, Layout, Source, pad
from weft.data.tokenizers import Tokenizer
from weft.decoding.search_loop import Cancellation
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import BatchItem, refuse
from weft.models.base import Network
from weft.tasks.answering.data import encode_stories, read_story
from weft.tasks.answering.memory_network import MemoryNetwork
from weft.tasks.classification.data import Labels
from weft.tasks.classification.predictor import NO_PREFIX, Label, LabelPredictor


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
        options: DecodingOptions,
        *,
        longest: int,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, labels, options, warn=warn)
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
