"""Attention over states split into a key part and a value part."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from weft.attention.base import Attended, Attention, Site
from weft.attention.core.dot_product import masked_softmax
from weft.attention.core.kv_store import KeyValueCache, KeyValues
from weft.attention.core.single_head import AdditiveScore, OneHead, SourceStates
from weft.batch import Layout
from weft.errors import ConfigError
from weft.state import State


class KeyValueAttention(Attention):
    """States are split, h = [k; v] or [k; v; p]: e_j = wᵀ tanh(W k + b + U k_j), α = softmax(e), context Σ α_j v_j.

    In causal use, as published, a token attends to earlier tokens only, so the first one gets 0; the surrounding model combines
    the context with its own v or p. Cross use, which the paper does not have, splits the states of both sides. Key and value
    are equally wide, and p takes the rest.

    parts: 1: a state is both key and value; 2: key and value; 3: key, value and predict
    """

    paper = "Daniluk et al. 2017"
    cost = "n²"
    uses = frozenset({"causal", "cross"})
    weights_sum: Literal["one", "at most one"] | None = "at most one"
    ignores_key_order = True
    packs = packs_square = True

    def __init__(self, site: Site, *, parts: Literal[1, 2, 3] = 2) -> None:
        super().__init__(site)
        memory = site.memory_dim
        if parts == 2 and (site.dim % 2 or memory % 2):
            raise ConfigError(f"states of width {site.dim} and {memory} cannot be split into key and value; use even widths")
        self.parts, self.query_width, self.width = parts, site.dim // parts, memory // parts
        self.head = OneHead(site, AdditiveScore(self.query_width, self.width, self.width))
        self.context_width = self.width
        self.weights_sum = "one" if site.use == "cross" else "at most one"

    def read(self, memory: Tensor, layout: Layout | None) -> State:
        return SourceStates.of(*self._split(memory), layout)

    def begin(self, rows: int, room: int | None) -> State:
        like = next(self.head.score.key.parameters())
        return KeyValues() if room is None else KeyValueCache.empty(rows, 1, room, self.width, like)

    def extend(self, x: Tensor, state: State, layout: Layout | None) -> State:
        keys, values = self._split(x)
        return state.append(keys[:, None], values[:, None], layout)

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        own_key = query[..., : self.query_width]
        if append is None:
            return self.head.run(own_key, state, layout, need_weights)
        place = state.place(append, layout)
        state = self.extend(append, state, layout)
        source, mask = _before(state, place, layout)
        weights = masked_softmax(self.head.scores(own_key, source), mask)
        return Attended(self.head.mix(weights, source), state, weights[:, None] if need_weights else None)

    def _split(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Projected keys and values [B, S, width] of states [B, S, M]."""
        key = states[..., : self.width]
        return self.head.score.keys(key), key if self.parts == 1 else states[..., self.width : 2 * self.width]


def _before(store: KeyValues | KeyValueCache, place: Tensor, layout: Layout | None) -> tuple[SourceStates, Tensor]:
    """The stored tokens as a source, and a mask of those before each of the newest tokens, at positions `place` [B, T]."""
    if isinstance(store, KeyValueCache):
        keys, values = store.dense()
        return SourceStates(keys[:, 0], values[:, 0]), store.key_positions()[:, None] < place[..., None]
    assert store.k is not None and store.v is not None
    total, extent = store.k.size(2), place.size(1)
    order = torch.arange(total, device=place.device)
    mask = (order < order[total - extent :, None])[None]
    if store.segments is not None:
        mask = mask & (store.segments > 0)[:, None]
        if layout is not None and layout.packed:
            mask = mask & (store.segments[:, None] == layout.segments[:, :, None])
    return SourceStates(store.k[:, 0], store.v[:, 0]), mask
