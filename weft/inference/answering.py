"""Answering: a story and a question to an answer, with the facts that the model looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from weft.batch import EOS, Layout, Source
from weft.data.labels import Labels
from weft.data.stories import encode_stories, read_story
from weft.data.tokenizer import RESERVED, Tokenizer
from weft.inference.predictor import Part, Prediction, Predictor, pad, refuse
from weft.inference.resolve import Resolved
from weft.models.base import Network
from weft.search.loop import Control


@dataclass
class Answer(Prediction):
    """An answer: `score` is its log-probability. A blank line has none.

    facts: the sentences of the story that the model could look at · hops: for each hop, the weight of each of these facts.
    """

    facts: list[str] = field(default_factory=list)
    hops: list[list[float]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        plain = super().document()
        if self.hops:
            looks = zip(self.facts, *self.hops, strict=True)
            plain["facts"] = [{"fact": fact, "hops": [round(weight, 4) for weight in weights]} for fact, *weights in looks]
        return plain


@dataclass(frozen=True)
class Question:
    """The sentences of a story, the question last. attention: whether to add the weights of each hop."""

    sentences: tuple[str, ...]
    attention: bool = False


class AnsweringPredictor(Predictor[Question, Answer]):
    """A model that answers questions, with its tokenizer and answers. It reads the latest `longest` tokens of a story.

    Of the decoding options it uses batch_tokens, precision and n_best, the number of answers given.
    """

    forks = False

    def __init__(
        self,
        model: Network,
        source: Tokenizer,
        labels: Labels,
        resolved: Resolved,
        *,
        longest: int,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, resolved, warn)
        self.source, self.labels, self.longest = source, labels, longest

    def parse(self, line: str, *, attention: bool = False, **fields: Any) -> Question:
        refuse(fields, "an answer is not written word by word, so it has no prefix and no terms; leave them out")
        return Question(tuple(read_story(line)), attention)

    def read(self, inputs: Sequence[Question], first_line: int) -> list[list[Part]]:
        encoded = encode_stories([given.sentences for given in inputs], self.source, self.longest)
        for line, (given, ids) in enumerate(zip(inputs, encoded, strict=True), start=first_line):
            if (read := ids.count(EOS)) < len(given.sentences):
                self.warn(f"line {line} has {len(given.sentences):,} sentences; only the latest {read:,} are read")
            for word in dict.fromkeys(word for sentence in given.sentences for word in self.source.unknown(sentence)):
                self.warn(f"line {line}: the word {word!r} did not occur in training")
        return [[Part(ids)] if ids else [] for ids in encoded]

    def run(self, parts: list[Part], control: Control | None = None) -> list[Answer]:
        rows = [part.ids for part in parts]
        logits, weights = self._answer(rows)
        logp = logits.float().log_softmax(-1)
        scores, places = (each.tolist() for each in logp.topk(min(self.resolved.section.n_best, logp.size(-1))))
        names, results = self.labels.names, []
        for number, (ids, logps, labels) in enumerate(zip(rows, scores, places, strict=True)):
            pieces, pairs = self.source.tokens(ids), zip(logps, labels, strict=True)
            best, *rest = (Answer(names[at], value, [at + RESERVED], [names[at]], pieces) for value, at in pairs)
            best.alternatives = rest
            if weights is not None:
                seen = min(ids.count(EOS) - 1, weights.size(-1))
                best.hops = weights[number, :, :seen].flip(-1).tolist()
            results.append(best)
        return results

    def join(self, given: Question, parts: list[Part], results: list[Answer]) -> Answer:
        if not results:
            return Answer("", 0.0)
        (answer,) = results
        if answer.hops:
            seen = len(answer.hops[0])
            answer.facts = list(given.sentences[len(given.sentences) - 1 - seen : -1])
            if given.attention:
                answer.attention["hops"] = np.asarray(answer.hops, np.float32)[:, None]
        return answer

    def _answer(self, rows: list[list[int]]) -> tuple[Tensor, Tensor | None]:
        device = self.model.device
        with self.resolved.arithmetic(next(self.model.parameters()).dtype):
            found = self.model(Source(pad(rows).to(device), Layout.padded([len(ids) for ids in rows]).to(device)))
        return found.logits, found.weights
