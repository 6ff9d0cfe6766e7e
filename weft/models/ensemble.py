"""Several models that speak with one voice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weft.batch import Layout
from weft.models.base import Decoder, Encoded, Encoder, Features, Model
from weft.state import State


class EnsembleEncoder(Encoder):
    """Every model reads the source for itself; the parts travel together."""

    def __init__(self, encoders: Sequence[Encoder]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Encoded:
        parts = [encoder(tokens, layout) for encoder in self.encoders]
        return Encoded(parts[0].memory, layout, parts=parts)


class EnsembleDecoder(Decoder):
    """The mean of the models' probabilities. Its hidden states are the models' log-probabilities, averaged."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        super().__init__()
        self.decoders = nn.ModuleList(decoders)

    def start(self, source: Encoded, *, room: int | None = None) -> list[State]:
        return [decoder.start(part, room=room) for decoder, part in zip(self._all(), source.parts, strict=True)]

    def features(self, tokens: Tensor, state: list[State], layout: Layout | None = None) -> Features:
        steps = [decoder(tokens, mine, layout) for decoder, mine in zip(self._all(), state, strict=True)]
        logp = torch.stack([step.logits.float().log_softmax(-1) for step in steps])
        return Features(logp.logsumexp(0) - math.log(len(steps)), [step.state for step in steps])

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def _all(self) -> list[Decoder]:
        return [decoder for decoder in self.decoders if isinstance(decoder, Decoder)]


class Ensemble(Model):
    """Models over the same vocabularies, of any families."""

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        self.encoder = EnsembleEncoder([model.encoder for model in models])
        self.decoder = EnsembleDecoder([model.decoder for model in models])
        self.dim, self.copies = models[0].dim, models[0].copies
        limits = [model.max_source for model in models if model.max_source is not None]
        self.max_source = min(limits, default=None)
        self.max_target = min((model.max_target for model in models if model.max_target is not None), default=None)
