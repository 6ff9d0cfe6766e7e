"""Attention by a small network that scores a query against a key."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site
from weft.attention.kernel import masked_softmax
from weft.batch import Layout
from weft.layers.dropout import dropout
from weft.state import State, shared, spread

QUERIES = 32
"""Queries scored at once: the hidden layer has a cell for every pair, so memory is bounded by this."""


@dataclass
class Scored:
    """keys [G, S, A], the projected memory · values [G, S, M] · segments [G, S] or None."""

    keys: Tensor = shared()
    values: Tensor = shared()
    segments: Tensor | None = shared(default=None)


class AdditiveAttention(Attention):
    """e_j = vᵀ tanh(W s + U h_j), α = softmax(e), and the context is Σ α_j h_j.

    hidden: width of the scoring network; 0: the model's
    """

    paper = "Bahdanau et al. 2015"
    cost = "n²"
    uses = frozenset({"cross"})
    weights_sum = "one"
    ignores_key_order = True
    packs = True

    def __init__(self, site: Site, *, hidden: NonNegativeInt = 0) -> None:
        super().__init__(site)
        width = hidden or site.dim
        self.query = nn.Linear(site.dim, width)
        self.key = nn.Linear(site.memory_dim, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.context_width = site.memory_dim

    def start(
        self, memory: Tensor | None = None, layout: Layout | None = None, *, rows: int = 1, room: int | None = None
    ) -> State:
        assert memory is not None
        return Scored(self.key(memory), memory, None if layout is None else layout.segments)

    def forward(
        self,
        query: Tensor,
        state: State,
        *,
        append: Tensor | None = None,
        layout: Layout | None = None,
        need_weights: bool = False,
    ) -> Attended:
        keys, values = spread(state.keys, query.size(0)), spread(state.values, query.size(0))
        mask = self._mask(query, state, layout)
        parts = []
        for begin in range(0, query.size(1), QUERIES):
            hidden = torch.tanh(self.query(query[:, begin : begin + QUERIES])[:, :, None] + keys[:, None])
            scores = self.score(hidden)[..., 0]
            part = None if mask is None else mask if mask.size(1) == 1 else mask[:, begin : begin + QUERIES]
            parts.append(masked_softmax(scores, part))
        weights = torch.cat(parts, 1)
        used = dropout(weights, self.site.dropout, self.training)
        return Attended(used @ values, state, weights[:, None] if need_weights else None)

    def _mask(self, query: Tensor, state: Scored, layout: Layout | None) -> Tensor | None:
        if state.segments is None:
            return None
        if layout is not None and layout.packed:
            return (state.segments[:, None] == layout.segments[:, :, None]) & layout.ok[:, :, None]
        return spread(state.segments > 0, query.size(0))[:, None]
