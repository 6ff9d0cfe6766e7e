"""What all language models have in common: a decoder without a source.

Shapes: B rows · T positions · M remembered positions · D width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from weft.data.batch import Layout, Source
from weft.layers.decoder_state import State
from weft.layers.positions import PositionKind
from weft.models.base import Encoded, Encoder, Features, LinearDecoder, Network, Sizes
from weft.models.composition import ModelFamily


class SourcelessDecoder(LinearDecoder):
    """A decoder whose source only says how many rows there are (`LanguageModel.nothing`)."""

    @abstractmethod
    def read(self, tokens: Tensor, state: State, layout: Layout | None = None) -> tuple[Features, list[Tensor]]:
        """`features`, and the inputs [B, T, D] of every layer for `recall`."""

    @abstractmethod
    def recall(self, memory: Sequence[Tensor]) -> State:
        """The state after an earlier segment, from the inputs [B, M, D] of every layer."""

    def features(self, tokens: Tensor, state: State, layout: Layout | None = None) -> Features:
        return self.read(tokens, state, layout)[0]


class LanguageModel(Network):
    """A decoder without a source. position: the absolute positions it uses."""

    decoder: SourcelessDecoder
    replays = True

    def __init__(self, decoder: SourcelessDecoder, position: PositionKind) -> None:
        super().__init__()
        self.decoder, self.position = decoder, position
        self.dim, self.max_target = decoder.dim, decoder.max_length

    def nothing(self, rows: int) -> Encoded:
        """The empty source that the decoder starts from."""
        return Encoded(torch.empty(rows, 0, self.dim, device=self.device))

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Features:
        """Hidden states from which each next token is predicted, for rows that begin here."""
        return self.decoder.features(tokens, self.decoder.start(self.nothing(tokens.size(0))), layout)


class EmptyEncoder(Encoder):
    """A language model as an encoder, for a classifier (Howard & Ruder 2018): each vector has read the tokens up to its own."""

    replays = True

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.decoder, self.width, self.max_source = model.decoder, model.decoder.hidden, model.max_target

    def forward(self, source: Source) -> Encoded:
        rows = source.values.size(0)
        empty = Encoded(torch.empty(rows, 0, self.decoder.dim, device=source.values.device))
        found = self.decoder.features(source.values, self.decoder.start(empty), source.layout)
        return Encoded(found.hidden, source.layout, found.extras)


class LanguageFamily(ModelFamily):
    """A kind of language model."""

    @abstractmethod
    def build(self, sizes: Sizes) -> LanguageModel:
        """A model with its initial weights."""

    def build_encoder(self, sizes: Sizes) -> EmptyEncoder:
        return EmptyEncoder(self.build(Sizes(sizes.source, sizes.source, shared=True)))
