"""Classifiers: any encoder, a pooling, and a linear layer over the labels.

Shapes: B rows · S source positions · r pooled vectors · C labels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.config.registry import build
from weft.data.batch import Source
from weft.layers.linear_norm_dropout import dropout
from weft.models.base import Encoder, Network, least
from weft.models.pooling import Pooled, Pooling


@dataclass
class ClassifierOutput:
    """logits [B, C] · weights [B, r, S] of the pooling, if it has any · extras: values [B] for auxiliary losses ·
    between: weights between two texts, by name."""

    logits: Tensor
    weights: Tensor | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)
    between: dict[str, Tensor] = field(default_factory=dict)


class Classifier(Network):
    """Pools what an encoder reads and scores the labels."""

    def __init__(self, encoder: Encoder, pooling: Pooling, labels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.pooling, self.dropout = encoder, pooling, dropout
        self.dim, self.max_source, self.cuda_graph_safe = encoder.width, encoder.max_source, encoder.cuda_graph_safe
        self.output = nn.Linear(pooling.rows * pooling.dim, labels)

    def forward(self, source: Source) -> ClassifierOutput:
        """The logits [B, C] of the labels."""
        encoded = self.encoder(source)
        pooled: Pooled = self.pooling(encoded.memory, encoded.layout)
        vector = dropout(pooled.vectors.flatten(1), self.dropout, self.training)
        return ClassifierOutput(self.output(vector), pooled.weights, pooled.extras)


def classifier(encoder: Encoder, pooling: Mapping[str, Any], labels: int, dropout: float = 0.0) -> Classifier:
    """An encoder with a pooling (task.pooling) and an output layer for the labels, at least one."""
    pooled = build("weft.models:POOLINGS", pooling, encoder.width, where="task.pooling")
    return Classifier(encoder, pooled, max(1, labels), dropout)


class ClassifierEnsemble(Network):
    """An ensemble of classifiers over the same labels, which averages their probabilities.

    several: whether each label has a probability of its own, because a text may have any number of labels · number: the
    output is a number, of which the mean is taken.
    """

    def __init__(self, classifiers: Sequence[Network], several: bool = False, *, number: bool = False) -> None:
        super().__init__()
        self.classifiers, self.several, self.number = nn.ModuleList(classifiers), several, number
        self.dim = classifiers[0].dim
        self.max_source = least(*(each.max_source for each in classifiers))

    def forward(self, *sources: Source) -> ClassifierOutput:
        """The logits are log-probabilities; of several labels, those of the mean probabilities."""
        each = torch.stack([classifier(*sources).logits.float() for classifier in self.classifiers])
        if self.number:
            return ClassifierOutput(each.mean(0))
        if self.several:
            return ClassifierOutput(_mean(F.logsigmoid(each)) - _mean(F.logsigmoid(-each)))
        return ClassifierOutput(_mean(each.log_softmax(-1)))


def _mean(logs: Tensor) -> Tensor:
    """The logarithm of the mean over the first dimension."""
    return logs.logsumexp(0) - math.log(len(logs))
