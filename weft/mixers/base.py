"""The interface of token mixing without a query: x → x."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Facts
from weft.batch import Layout
from weft.layers.unpacking import repack, unpack
from weft.state import State


class Mixer(Facts, ABC):
    """Mixes the tokens of a row, all at once (encoder) or each with those before it (causal), in pieces of any size."""

    @abstractmethod
    def start(self, *, rows: int = 1, room: int | None = None) -> State:
        """A state to begin with."""

    @abstractmethod
    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        """x [B, T, D] → context [B, T, D]. Tokens that are not `ok` in the layout were never fed."""

    def recall(self, memory: Tensor) -> State:
        """In causal use, the state after tokens [B, M, D] of which nothing is asked any more: an earlier segment."""
        found: Attended = self(memory, self.start(rows=memory.size(0)))
        return found.state


class RowMixer(Mixer):
    """A mixer of one sentence a row; the sentences of a packed row are laid out as padded rows, mixed, and put back."""

    packs = True

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        if layout is None or not layout.packed:
            context, state = self.mix(x, state, layout)
            return Attended(context.to(x.dtype), state)
        rows, own = unpack(x, layout)
        context, _ = self.mix(rows, self.start(rows=rows.size(0)), own)
        return Attended(repack(context, layout).to(x.dtype), state)

    @abstractmethod
    def mix(self, x: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        """x [B, T, D], a sentence or a piece of it a row → context [B, T, D] and the state after it."""


class SelfAttention(Mixer):
    """An attention turned on its own sequence; a context of another width is brought to the model's."""

    uses = frozenset({"encoder", "causal"})

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention.site)
        self.attention = attention
        self.weights_sum, self.reach, self.terms = attention.weights_sum, attention.reach, attention.terms
        self.ignores_key_order = attention.ignores_key_order
        self.packs, self.packs_square = attention.packs, attention.packs_square
        self.max_length = attention.max_length
        width, dim = attention.context_width, attention.site.dim
        self.project = nn.Identity() if width == dim else nn.Linear(width, dim)

    def start(self, *, rows: int = 1, room: int | None = None) -> State:
        return self.attention.start(rows=rows, room=room)

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        found: Attended = self.attention(x, state, append=x, layout=layout, need_weights=need_weights)
        return replace(found, context=self.project(found.context))

    def recall(self, memory: Tensor) -> State:
        return self.attention.start(memory, rows=memory.size(0))

    def sees(self, length: int) -> Tensor:
        return self.attention.sees(length)

    def refresh(self, generator: torch.Generator) -> None:
        """The attention inside is a module of its own, so the trainer reaches it itself."""
