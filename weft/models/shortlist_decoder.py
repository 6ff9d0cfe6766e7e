"""A decoder that chooses among some tokens only."""

from __future__ import annotations

from torch import Tensor

from weft.data.batch import Layout
from weft.layers.decoder_state import State
from weft.models.base import Decoder, Encoded, Features


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
