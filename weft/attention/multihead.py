"""Projections and flow that dot-product attentions with several heads have in common."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.attention.base import Attended, Site, join_heads, split_heads
from weft.attention.kernel import Cache, Memory, Pattern, Plain, attend, attend_memory
from weft.batch import Layout
from weft.layers.position import rotate, rotation
from weft.state import State


class MultiHead(nn.Module):
    """Multi-head attention of Vaswani et al. 2017, section 3.2, with what may be varied in it handed in.

    For self-use queries, keys and values come from one projection; for cross-use keys and values do.
    """

    def __init__(self, site: Site, *, bias: bool = True, pattern: Pattern | None = None, rotary: float | None = None) -> None:
        super().__init__()
        self.site, self.pattern, self.rotary = site, pattern, rotary
        self.width = site.head_dim
        if site.use == "cross":
            self.query = nn.Linear(site.dim, site.dim, bias=bias)
            self.key_value = nn.Linear(site.memory_dim, 2 * site.dim, bias=bias)
        else:
            self.query_key_value = nn.Linear(site.dim, 3 * site.dim, bias=bias)
        self.out = nn.Linear(site.dim, site.dim, bias=bias)
        self.reset()

    def reset(self) -> None:
        """Xavier initialisation of each projection on its own, whatever matrix it is stored in."""
        for name, module in self.named_children():
            assert isinstance(module, nn.Linear)
            for block in module.weight.detach().split(self.site.dim) if name != "out" else (module.weight.detach(),):
                nn.init.xavier_uniform_(block)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def start(self, memory: Tensor | None, layout: Layout | None, rows: int, room: int | None) -> State:
        if self.site.use == "cross":
            assert memory is not None
            k, v = (split_heads(part, self.site.heads) for part in self.key_value(memory).chunk(2, -1))
            return Memory.of(k, v, layout)
        weight = self.out.weight
        state: Plain | Cache = Plain()
        if room is not None and self.site.use == "causal":
            state = Cache.empty(rows, self.site.heads, room, self.width, weight)
        return state if memory is None else self._append(memory, state, layout)[1]

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        dropout = self.site.dropout if self.training else 0.0
        if append is None:
            q = split_heads(self.query(query), self.site.heads)
            context, weights = attend_memory(q, state, layout=layout, dropout=dropout, need_weights=need_weights)
        else:
            if append is not query:
                raise ValueError("in self-attention the appended tokens are the queries themselves")
            q, state, positions = self._append(append, state, layout)
            context, weights = attend(
                q,
                state,
                causal=self.site.use == "causal",
                layout=layout,
                positions=positions,
                pattern=self.pattern,
                dropout=dropout,
                need_weights=need_weights,
            )
        return Attended(self.out(join_heads(context)), state, weights)

    def _append(self, x: Tensor, state: Plain | Cache, layout: Layout | None) -> tuple[Tensor, Plain | Cache, Tensor | None]:
        joint, v = self.query_key_value(x).split([2 * self.site.dim, self.site.dim], -1)
        both, v = split_heads(joint, 2 * self.site.heads), split_heads(v, self.site.heads)
        positions = None
        if self.rotary is not None or self.pattern is not None or isinstance(state, Cache):
            positions = state.place(x, layout)
        if self.rotary is not None:
            assert positions is not None
            both = rotate(both, self._turn(positions, layout, both.dtype))
        q, k = both.chunk(2, 1)
        return q, state.append(k, v, layout), positions

    def _turn(self, positions: Tensor, layout: Layout | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rotation at these positions; on a whole sequence the same for all layers, so it is computed once."""
        assert self.rotary is not None
        base = self.rotary
        if layout is None or positions is not layout.positions:
            return rotation(positions, self.width, base, dtype)
        key = ("rotation", self.width, base, dtype)
        return layout.remember(key, lambda: rotation(positions, self.width, base, dtype))
