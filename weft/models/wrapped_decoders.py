"""Ensembles: several models that decode together.

A decoder that chooses among some tokens only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weft.data.batch import Layout, Source
from weft.layers.decoder_state import State
from weft.models.base import Decoder, Encoded, Encoder, Features, Model, least


class EnsembleEncoder(Encoder):
    """Each model encodes the source; the results are the parts of one `Encoded`."""

    def __init__(self, encoders: Sequence[Encoder]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.width = encoders[0].width

    def forward(self, source: Source) -> Encoded:
        parts = [encoder(source) for encoder in self.encoders]
        return Encoded(parts[0].memory, parts[0].layout, parts=parts)


class EnsembleDecoder(Decoder):
    """The mean of the models' probabilities. Its hidden states are the models' log-probabilities, averaged."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        super().__init__()
        self.decoders = nn.ModuleList(decoders)
        self.dim = decoders[0].dim

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
        decoder = EnsembleDecoder([model.decoder for model in models])
        super().__init__(EnsembleEncoder([model.encoder for model in models]), decoder)
        self.copies = models[0].copies
        self.max_source = least(*(model.max_source for model in models))
        self.max_target = least(*(model.max_target for model in models))


class ShortlistDecoder(Decoder):
    """A decoder restricted to the tokens `ids` [N], to save work in its output layer; its token n is token ids[n]."""

    def __init__(self, decoder: Decoder, ids: Tensor) -> None:
        super().__init__()
        self.decoder, self.ids, self.output = decoder, ids, decoder.among(ids)

    def start(self, source: Encoded, *, room: int | None = None) -> State:
        return self.decoder.start(source, room=room)

    def features(self, tokens: Tensor, state: State, layout: Layout | None = None) -> Features:
        return self.decoder.features(self.ids[tokens], state, layout)

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.output(hidden)
        return logits
