"""Classifiers: any encoder, a pooling, and a linear layer over the labels.

Shapes: B rows · S source positions · r pooled vectors · C labels.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.config.registry import Among
from weft.data.batch import PAD, Layout, Source, pad
from weft.errors import ConfigError
from weft.layers.linear_norm_dropout import dropout
from weft.layers.step_recorder import record, recording
from weft.models.base import Encoder, Network, Sizes, least
from weft.models.encoder_decoder import VectorEncoder, build_encoder
from weft.models.pooling import LabelAttentivePooling, Pooled, Pooling, build_pooling

PoolingSpec = Annotated[dict[str, Any], Among("weft.models:POOLINGS")]
"""A pooling and its options, as configurations write them."""


@dataclass
class ClassifierOutput:
    """logits [B, C] · weights [B, r, S] of the pooling, if it has any · extras: values [B] for auxiliary losses ·
    between: weights between two texts, by name."""

    logits: Tensor
    weights: Tensor | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)
    between: dict[str, Tensor] = field(default_factory=dict)


def record_probabilities(logits: Tensor, *, several: bool) -> None:
    """Records the probabilities of labels, by logits [B, C]. several: each label has one of its own."""
    if recording():
        logits, axes = logits.float(), "row label"
        chances = logits.sigmoid() if several else logits.softmax(-1)
        formula = "sigmoid(logits)" if several else "softmax(logits, label)"
        record("probabilities", chances, axes, formula, logits=(logits, axes))


class Classifier(Network):
    """Pools what an encoder reads and scores the labels."""

    def __init__(self, encoder: Encoder, pooling: Pooling, labels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.pooling, self.dropout = encoder, pooling, dropout
        self.dim, self.max_source, self.cuda_graph_safe = encoder.width, encoder.max_source, encoder.cuda_graph_safe
        self.output = self.make_output(labels)

    def make_output(self, labels: int) -> nn.Linear:
        return nn.Linear(self.pooling.rows * self.pooling.dim, labels)

    def forward(self, source: Source) -> ClassifierOutput:
        """The logits [B, C] of the labels."""
        encoded = self.encoder(source)
        pooled: Pooled = self.pooling(encoded.memory, encoded.layout)
        vector = dropout(pooled.vectors.flatten(1), self.dropout, self.training)
        return ClassifierOutput(self.output(vector), pooled.weights, pooled.extras)


class LabelAttentiveClassifier(Classifier):
    """Scores each label by a vector c_l of its own: e_l · ReLU(W c_l + b), with e_l of the label and the same W and b for all.

    texts: the token ids of each label's text, if e_l comes from it: W′ times the mean of their embeddings, plus b′.
    """

    pooling: LabelAttentivePooling

    def __init__(
        self, encoder: Encoder, pooling: Pooling, labels: int, dropout: float = 0.0, texts: Sequence[Sequence[int]] = ()
    ) -> None:
        super().__init__(encoder, pooling, labels, dropout)
        if self.pooling.labels is not None:
            return
        if not isinstance(encoder, VectorEncoder):
            raise ConfigError("task.pooling: queries: text needs an encoder with a frontend of tokens; set queries: learned")
        self.project = nn.Linear(encoder.input_width, encoder.width)
        self.texts, self.placed = texts or [[PAD]] * labels, dict[torch.device, Source]()

    def make_output(self, labels: int) -> nn.Linear:
        return nn.Linear(self.pooling.dim, self.pooling.dim)

    def label_vectors(self) -> Tensor:
        """The vectors [C, D] of the labels."""
        if self.pooling.labels is not None:
            return self.pooling.labels
        assert isinstance(self.encoder, VectorEncoder)
        if self.device not in self.placed:
            lengths = [len(text) for text in self.texts]
            self.placed[self.device] = Source(pad(self.texts), Layout.padded(lengths)).to(self.device)
        x, layout = self.encoder.front(self.placed[self.device])
        assert layout is not None
        total = torch.where(layout.mask[..., None], x, 0.0).sum(1)
        mean: Tensor = self.project(total / layout.lengths[:, None])
        return mean

    def forward(self, source: Source) -> ClassifierOutput:
        encoded, labels = self.encoder(source), self.label_vectors()
        pooled = self.pooling(encoded.memory, encoded.layout, labels)
        contexts = dropout(pooled.vectors, self.dropout, self.training)
        return ClassifierOutput((F.relu(self.output(contexts)) * labels).sum(-1), pooled.weights, pooled.extras)


def build_classifier(
    spec: Mapping[str, Any],
    sizes: Sizes,
    pooling: Mapping[str, Any],
    labels: int,
    dropout: float = 0.0,
    texts: Callable[[], Sequence[Sequence[int]]] | None = None,
) -> Classifier:
    """The encoder that `spec` (the section model) describes, a pooling (task.pooling) and a layer for labels, at least one.

    texts: gives the token ids of each label's text, for a pooling whose queries they are.
    """
    encoder, labels = build_encoder(spec, sizes), max(1, labels)
    pooled = build_pooling(pooling, encoder.width, where="task.pooling", labels=labels)
    if not isinstance(pooled, LabelAttentivePooling):
        return Classifier(encoder, pooled, labels, dropout)
    given = texts() if texts and pooled.labels is None else ()
    return LabelAttentiveClassifier(encoder, pooled, labels, dropout, given)


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
