"""Models that estimate the quality of translations: a comparison of both texts, a number, and a logit for each word.

Shapes: B rows · T tokens of the translation · W words of it · D width · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.config.registry import Among, build, find_table, load
from weft.data.batch import BOS, Source
from weft.layers.linear_norm_dropout import dropout
from weft.models.base import Model, Sizes, least
from weft.models.encoder_decoder import VectorEncoder, build_encoder, build_encoder_decoder
from weft.models.pooling import Pooled, build_pooling
from weft.tasks.pairs.model import Compared, Comparison, PairModel

FEATURES = 3


class ForcedDecoding(Comparison):
    """A translation model reads the source, and its decoder the translation, by teacher forcing; an estimator reads its states.

    The predictor–estimator of Kim et al. 2017, with the decoder of a trained model in place of a word predictor of its own.
    Token t has the state that predicts it, the state that has read it, log p(y_t), by how much the likeliest token is likelier,
    and the entropy of the prediction. The second encoder, `composition`, reads these vectors in both directions.

    composition: the estimator
    pooling: how its vectors become one
    tune: train the translation model as well; otherwise it stays as it is
    """

    def __init__(
        self,
        model: Model,
        dropout: float = 0.0,
        *,
        composition: Annotated[dict[str, Any], Among("weft.models:ENCODERS")] = {"kind": "rnn", "cell": "lstm"},  # noqa: B006
        pooling: Annotated[dict[str, Any], Among("weft.models:POOLINGS")] = {"kind": "mean_max"},  # noqa: B006
        tune: bool = False,
    ) -> None:
        super().__init__(model.encoder, dropout)
        self.decoder, self.tune = model.decoder, tune
        self.composition: VectorEncoder = build("weft.models:ENCODERS", composition, where="task.estimator.composition")
        self.project = nn.Linear(2 * self.decoder.hidden + FEATURES, self.composition.input_width)
        self.pooling = build_pooling(pooling, self.composition.width, where="task.estimator.pooling")
        self.state_width = self.composition.width
        self.width = self.pooling.rows * self.state_width + FEATURES
        for part in (self.encoder, self.decoder):
            part.requires_grad_(tune)

    def train(self, mode: bool = True) -> ForcedDecoding:
        """A translation model that is not trained drops nothing either."""
        super().train(mode)
        for part in (self.encoder, self.decoder):
            part.train(mode and self.tune)
        return self

    def forward(self, first: Source, second: Source) -> Compared:
        with torch.set_grad_enabled(self.tune and torch.is_grad_enabled()):
            states, features = self.force(first, second)
        states = torch.cat([states, features], -1)
        again = self.composition.read(F.relu(self.project(self.drop(states))), second.layout)
        pooled: Pooled = self.pooling(again.memory, again.layout)
        mask = again.mask[..., None]
        mean = torch.where(mask, features, 0.0).sum(1) / mask.sum(1)
        return Compared(torch.cat([pooled.vectors.flatten(1), mean], -1), again.memory)

    def force(self, first: Source, second: Source) -> tuple[Tensor, Tensor]:
        """The states [B, T, 2D] of the decoder at each token of a translation, and the features [B, T, 3]."""
        tokens = second.values
        fed = torch.cat([torch.full_like(tokens[:, :1], BOS), tokens[:, :-1]], 1)
        state = self.decoder.init_state(self.encoder(first))
        hidden = self.decoder.hidden_states(fed, state, second.layout).hidden
        logs = self.decoder.logits(hidden).float().log_softmax(-1)
        chosen = logs.gather(-1, tokens[..., None])[..., 0]
        entropy = -(logs.exp() * logs).sum(-1)
        after = torch.cat([hidden[:, 1:], hidden[:, -1:]], 1)
        features = torch.stack([chosen, logs.amax(-1) - chosen, entropy], -1).clamp(-MOST, MOST)
        return torch.cat([hidden, after], -1), features.to(hidden.dtype)


MOST = 20.0
"""The largest feature."""


@dataclass
class QualityOutput:
    """number [B] · words [B, W]: logits of OK, if the model has any · between: weights between the texts, by name."""

    number: Tensor
    words: Tensor | None
    between: dict[str, Tensor] = field(default_factory=dict)


class QualityModel(PairModel):
    """A number for a translation and, with `tags`, a logit for each of its words, from a comparison with the source."""

    def __init__(self, comparison: Comparison, hidden: int = 0, dropout: float = 0.0, *, tags: bool = True) -> None:
        super().__init__(comparison, 1, hidden, dropout)
        if isinstance(comparison, ForcedDecoding):
            self.max_target = comparison.decoder.max_length
            self.max_source = least(comparison.encoder.max_source, comparison.decoder.max_memory)
        self.words = nn.Linear(comparison.state_width, 1) if tags else None

    def forward(self, first: Source, second: Source, spans: Tensor) -> QualityOutput:  # type: ignore[override]
        """spans: see `QualityBatch`."""
        compared: Compared = self.comparison(first, second)
        number = self.score(compared.vector)[:, 0]
        if self.words is None:
            return QualityOutput(number, None, compared.weights)
        words = dropout(mean_of_spans(compared.states, spans), self.dropout, self.training)
        return QualityOutput(number, self.words(words)[..., 0], compared.weights)


def mean_of_spans(states: Tensor, spans: Tensor) -> Tensor:
    """[B, W, D]: the mean of the states [B, T, D] of each word, given its first and last token; 0 on padding."""
    place = torch.arange(states.size(1), device=states.device)
    member = (place >= spans[..., :1]) & (place < spans[..., 1:])
    return member.to(states.dtype) @ states / member.sum(2, keepdim=True).clamp_min(1)


def quality_model(
    spec: Mapping[str, Any], sizes: Sizes, estimator: Mapping[str, Any], hidden: int, share: float, *, tags: bool
) -> QualityModel:
    """The model of the section `model` with an estimator (task.estimator)."""
    read = build_encoder_decoder(spec, sizes) if forces(estimator) else build_encoder(spec, sizes)
    comparison = build("weft.tasks.quality:ESTIMATORS", estimator, read, share, where="task.estimator")
    return QualityModel(comparison, hidden, share, tags=tags)


def forces(estimator: Mapping[str, Any]) -> bool:
    """Whether an estimator reads the states of a translation model."""
    return issubclass(load(find_table("weft.tasks.quality:ESTIMATORS"), estimator["kind"]), ForcedDecoding)
