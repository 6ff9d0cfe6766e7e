"""What models say that choose labels: one label, or any number of them, with their probabilities."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from weft.batch import Source
from weft.data.labels import Labels
from weft.data.tokenizer import RESERVED
from weft.inference.predictor import Prediction, Predictor
from weft.inference.resolve import Resolved
from weft.models.base import Network
from weft.models.classifier import Judged

NO_PREFIX = "a label is not written word by word, so it has no prefix and no terms; leave them out"


@dataclass
class Label(Prediction):
    """A label: `text` is its name and `score` its log-probability. A blank line has none.

    If an input may have any number of labels, `text` joins their names by commas and `score` is the log-probability of this
    choice. probabilities: of all labels, the likeliest first · sentences: the tokens of each sentence, if the model reads
    them · facts: the sentences of a story that the model could look at · hops: for each look, the weight of each fact.
    """

    probabilities: dict[str, float] = field(default_factory=dict)
    sentences: list[list[str]] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    hops: list[list[float]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        plain = super().document()
        if self.probabilities:
            plain["probabilities"] = {name: round(value, 6) for name, value in self.probabilities.items()}
        if self.hops:
            looks = zip(self.facts, *self.hops, strict=True)
            plain["facts"] = [{"fact": fact, "hops": [round(weight, 4) for weight in weights]} for fact, *weights in looks]
        return plain


Input = TypeVar("Input")


class LabelPredictor(Predictor[Input, Label], ABC, Generic[Input]):
    """A model with the labels that it chooses from; those of several that are more probable than `threshold` are given.

    Of the decoding options it uses batch_tokens, precision, compile and n_best, the number of labels given.
    """

    forks = False

    def __init__(
        self,
        model: Network,
        labels: Labels,
        resolved: Resolved,
        *,
        threshold: float = 0.5,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, resolved, warn)
        self.labels, self.threshold = labels, threshold

    def judge(self, source: Source) -> Judged:
        with self.resolved.arithmetic(next(self.model.parameters()).dtype):
            judged: Judged = self.model(source.to(self.model.device))
        return judged

    def give(self, logits: Tensor, tokens: list[str]) -> Label:
        """What the logits [C] of an input say, given its tokens."""
        label = self._several(logits) if self.labels.several else self._single(logits)
        for each in (label, *label.alternatives):
            each.source_tokens = tokens
        return label

    def _single(self, logits: Tensor) -> Label:
        """The likeliest label, and as alternatives the next ones, `n_best` in all."""
        names, logp = self.labels.names, logits.log_softmax(-1)
        values, places = (each.tolist() for each in logp.sort(descending=True, stable=True))
        pairs = list(zip(values, places, strict=True))
        best, *rest = (
            Label(names[at], value, [at + RESERVED], [names[at]]) for value, at in pairs[: self.resolved.section.n_best]
        )
        best.alternatives = rest
        best.probabilities = {names[at]: math.exp(value) for value, at in pairs}
        return best

    def _several(self, logits: Tensor) -> Label:
        """All labels whose probability exceeds the threshold."""
        names, shares = self.labels.names, logits.sigmoid()
        said = shares > self.threshold
        score = torch.where(said, logsigmoid(logits), logsigmoid(-logits)).sum().item()
        ids = said.nonzero()[:, 0].tolist()
        label = Label(self.labels.join(ids), score, [at + RESERVED for at in ids], [names[at] for at in ids])
        values, places = (each.tolist() for each in shares.sort(descending=True, stable=True))
        label.probabilities = {names[at]: value for value, at in zip(values, places, strict=True)}
        return label
