"""The interface of mixers: x → x, without a separate query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Facts
from weft.data.batch import Layout
from weft.layers.decoder_state import State
from weft.layers.kernels.cpp_plan import PlanBuilder, Register
from weft.layers.recurrent import repack, unpack


class Mixer(Facts, ABC):
    """Mixes the tokens of a row, all at once (encoder) or each with those before it (causal), in chunks of any size."""

    def start(self, *, rows: int = 1, room: int | None = None) -> State:
        """The initial state; an encoder has none."""
        return None

    @abstractmethod
    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        """x [B, T, D] → context [B, T, D]. Tokens that are not `ok` in the layout count as never fed."""

    def recall(self, memory: Tensor) -> State:
        """The causal state after tokens [B, M, D] of an earlier segment, whose own outputs are not needed."""
        return self(memory, self.start(rows=memory.size(0))).state


class RowMixer(Mixer):
    """A mixer for one sentence per row. Packed rows are unpacked to padded rows, mixed, and packed again."""

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
        """x [B, T, D], with a sentence or a chunk of one per row → context [B, T, D] and the state after it."""


class SelfAttention(Mixer):
    """An attention over its own sequence. A context of another width is projected to the model's width."""

    uses = frozenset({"encoder", "causal"})

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention.site)
        self.attention = attention
        for fact in ("weights_sum", "reach", "extras", "ignores_key_order", "packs", "packs_square", "max_length"):
            setattr(self, fact, getattr(attention, fact))
        width, dim = attention.context_width, attention.site.dim
        self.project = nn.Identity() if width == dim else nn.Linear(width, dim)

    def start(self, *, rows: int = 1, room: int | None = None) -> State:
        return self.attention.start(rows=rows, room=room)

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        attended: Attended = self.attention(x, state, append=x, layout=layout, need_weights=need_weights)
        return replace(attended, context=self.project(attended.context))

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        return draft.linear(self.project, draft.part(self.attention, x))

    def recall(self, memory: Tensor) -> State:
        return self.attention.start(memory, rows=memory.size(0))

    def sees(self, length: int) -> Tensor:
        return self.attention.sees(length)
