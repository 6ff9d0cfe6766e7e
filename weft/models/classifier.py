"""A label for a whole text: an encoder of any family, a pooling, and a linear layer.

Shapes: B rows · S source positions · r pooled vectors · C labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from weft.batch import Layout
from weft.layers.dropout import dropout
from weft.models.base import Model, Network
from weft.pooling.base import Pooled, Pooling


@dataclass
class Judged:
    """logits [B, C] · weights [B, r, S] of the pooling, where it has any · terms: raw quantities [B], in training only."""

    logits: Tensor
    weights: Tensor | None = None
    terms: dict[str, Tensor] = field(default_factory=dict)


class Classifier(Network):
    """Reads a text with the encoder of `base`, whose decoder is not kept, and scores each of the labels."""

    def __init__(self, base: Model, pooling: Pooling, labels: int, share: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.pooling, self.dropout = base.encoder, pooling, share
        self.dim, self.max_source, self.replays = base.dim, base.max_source, base.replays
        self.output = nn.Linear(pooling.rows * pooling.dim, labels)

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Judged:
        """tokens [B, S] → logits [B, C]."""
        encoded = self.encoder(tokens, layout)
        pooled: Pooled = self.pooling(encoded.memory, encoded.layout)
        vector = dropout(pooled.vectors.flatten(1), self.dropout, self.training)
        return Judged(self.output(vector), pooled.weights, pooled.terms)


class Vote(Network):
    """Several classifiers over the same labels: the mean of their probabilities."""

    def __init__(self, classifiers: Sequence[Network]) -> None:
        super().__init__()
        self.classifiers = nn.ModuleList(classifiers)
        self.dim = classifiers[0].dim
        self.max_source = min((each.max_source for each in classifiers if each.max_source is not None), default=None)

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Judged:
        """The logits are log-probabilities."""
        each = [classifier(tokens, layout).logits.float().log_softmax(-1) for classifier in self.classifiers]
        return Judged(torch.stack(each).logsumexp(0) - math.log(len(each)))
