"""Attention over states split into a key part and a value part.

Shapes: B rows · T queries · L remembered states · W width of a key and of a value.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from weft.attention.base import Attended, Attention, Site
from weft.attention.core.dot_product import KeyValueStore, masked_softmax
from weft.attention.core.kv_cache import ConcatenatedKeyValues, KeyValueCache
from weft.attention.core.rnn_attention import AdditiveScore, SingleHead, SourceStates
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.decoder_state import State
from weft.layers.linear_norm_dropout import dropout
from weft.layers.step_recorder import record, recording, steps_under


def _part(name: str, states: Tensor, begin: int, end: int | None = None) -> Tensor:
    """A part of states [B, T, D], which is recorded under this name."""
    part = states[..., begin:end]
    record(f"{name} part", part, "row token channel", states=(states, "row token channel"))
    return part


@dataclass
class RecentKeyValues:
    """tail [B, L, 2W + 1]: the last L projected keys and values, each with a 1, and zeros before the first token · length [B]:
    tokens fed in total."""

    tail: Tensor
    length: Tensor


class KeyValueAttention(Attention):
    """States are split, h = [k; v] or [k; v; p]: e_j = wᵀ tanh(W k + b + U k_j), α = softmax(e), context Σ α_j v_j.

    In causal use, as published, a token attends to earlier tokens only, so the first one gets 0. The output of a recurrent
    language model (rnn_language_model) reads the context and h, v or p, as published. Cross use, which the paper does not have,
    splits the states of both sides; a recurrent decoder then reads the context and h, h or p. Other models do not separate
    p, so they refuse three parts. Key and value are equally wide, and p takes the rest.

    parts: 1: a state is both key and value; 2: key and value; 3: key, value and predict, for recurrent models
    span: how many of the last states a token attends to, in causal use; 0: all of them
    """

    paper = "Daniluk et al. 2017"
    cost = "n², or n·span"
    uses = frozenset({"causal", "cross"})
    weights_sum: Literal["one", "at most one"] | None = "at most one"
    ignores_key_order = True
    supports_packing = packing_is_quadratic = True

    def __init__(self, site: Site, *, parts: Literal[1, 2, 3] = 2, span: NonNegativeInt = 0) -> None:
        super().__init__(site)
        _check(site, parts, span)
        self.parts, self.query_width, self.width = parts, site.dim // parts, site.memory_dim // parts
        self.head = SingleHead(site, AdditiveScore(self.query_width, self.width, self.width))
        self.context_width = self.width
        self.weights_sum = "one" if site.use == "cross" else "at most one"
        # The window of a token ends with the token itself, which it does not attend to.
        self.window = TokenWindow(2 * self.width + 1, span + 1, causal=True) if span else None
        if span:
            self.receptive_field, self.ignores_key_order, self.packing_is_quadratic = "pattern", False, False

    def predicting(self, states: Tensor) -> Tensor:
        """The part that is left for the prediction (equations 4 and 10, section 2.3)."""
        if self.parts == 3:
            return _part("predict", states, 2 * self.query_width)
        return _part("predict", states, self.query_width) if self.parts == 2 and self.site.use == "causal" else states

    def sees(self, length: int) -> Tensor:
        if self.window is None:
            return super().sees(length)
        return self.window.sees(length) & ~torch.eye(length, dtype=torch.bool)

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> State:
        keys, own = self._split(memory)
        return SourceStates.of(keys, own if values is None else self._split(values)[1], layout)

    def begin(self, rows: int, room: int | None) -> State:
        like = next(self.head.score.key.parameters())
        if self.window is not None:
            tail = self.window.init_state(rows, like)
            assert tail is not None
            return RecentKeyValues(tail, torch.zeros(rows, dtype=torch.long, device=like.device))
        return ConcatenatedKeyValues() if room is None else KeyValueCache.empty(rows, 1, room, self.width, like)

    def extend(self, x: Tensor, state: State, layout: Layout | None) -> State:
        if self.window is not None:
            return self._append(x, state, layout)[1]
        keys, values = self._split(x)
        return state.append(keys[:, None], values[:, None], layout)

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        own_key = query[..., : self.query_width]
        if append is None:
            return self.head.run(own_key, state, layout, need_weights)
        if self.window is not None:
            return self._attend_window(own_key, append, state, layout, need_weights)
        place = state.place(append, layout)
        state = self.extend(append, state, layout)
        source, mask = _before(state, place, layout)
        weights = masked_softmax(self.head.scores(own_key, source), mask)
        return Attended(self.head.mix(weights, source), state, weights[:, None] if need_weights else None)

    def _attend_window(
        self, own_key: Tensor, append: Tensor, state: RecentKeyValues, layout: Layout | None, need_weights: bool
    ) -> Attended:
        """Each query against the L states before it: the work grows with T·L."""
        before, after = self._append(append, state, layout)
        keys, values, real = before.split([self.width, self.width, 1], -1)
        rows, extent, span = real.shape[:3]
        score = self.head.score
        assert isinstance(score, AdditiveScore)
        query = score.query(own_key)
        with steps_under(None):
            scores = score.energy(query.flatten(0, 1)[:, None], keys.flatten(0, 1))
        weights = masked_softmax(scores, real.flatten(0, 1).transpose(1, 2) > 0, shown="")
        used = dropout(weights, self.head.dropout, self.training)
        context = torch.bmm(used, values.flatten(0, 1).to(used.dtype)).view(rows, extent, -1)
        if recording():
            self._record_window((query, keys, scores), real[..., 0], weights, values, context)
        shown = _over_all_tokens(weights.view(rows, extent, span), state.length) if need_weights else None
        return Attended(context, after, shown)

    def _record_window(
        self, scoring: tuple[Tensor, Tensor, Tensor], real: Tensor, weights: Tensor, values: Tensor, context: Tensor
    ) -> None:
        """Records what each query does with the states before it, the earliest first; the key `back` counts them."""
        window, (query, keys, scores) = "row query back", scoring
        scores, weights = scores.view_as(real), weights.view_as(real)
        masked = scores.masked_fill(real <= 0, float("-inf"))
        operands = {"real": (real, window), "scores": (scores, window)}
        assert isinstance(self.head.score, AdditiveScore)
        scored = {"v": (self.head.score.score.weight[0], "channel"), "q": (query, "row query channel")}
        record("scores", scores, window, "sum(v * tanh(q + k), channel)", **scored, k=(keys, f"{window} channel"))
        record("masked scores", masked, window, "where(real, scores, -inf)", **operands)
        record("weights of the window", weights, window, "softmax(scores, back)", scores=(masked, window))
        operands = {"weights": (weights, window), "v": (values, f"{window} channel")}
        record("context", context, "row query channel", "sum(weights * v, back)", **operands)

    def _append(self, x: Tensor, state: RecentKeyValues, layout: Layout | None) -> tuple[Tensor, RecentKeyValues]:
        """[B, T, L, 2W + 1]: the states before each token, and the state after x [B, T, D]."""
        assert self.window is not None
        keys, values = self._split(x)
        tokens = torch.cat([keys, values.to(keys.dtype), keys.new_ones(*keys.shape[:2], 1)], -1)
        windows, tail = self.window(tokens, state.tail, layout)
        assert tail is not None
        fed = x.size(1) if layout is None else layout.lengths
        before = windows.unflatten(-1, (self.window.width, self.window.dim))[:, :, :-1]
        for name, own, place in (("keys", keys, 0), ("values", values, self.width)):
            earlier = before[..., place : place + self.width]
            record(f"{name} before", earlier, "row query back channel", **{name: (own, "row token channel")})
        return before, RecentKeyValues(tail, state.length + fed)

    def _split(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Projected keys and values [B, S, width] of states [B, S, M]."""
        key = _part("key", states, 0, self.width)
        return self.head.score.key(key), key if self.parts == 1 else _part("value", states, self.width, 2 * self.width)


def _check(site: Site, parts: int, span: int) -> None:
    """Rejects options that the site does not support."""
    if parts == 2 and (site.dim % 2 or site.memory_dim % 2):
        raise ConfigError(
            f"states of width {site.dim} and {site.memory_dim} cannot be split into key and value; use even widths"
        )
    if parts == 3 and not site.predicts:
        raise ConfigError(
            "key_value with parts: 3 is for models whose output reads the third part: model.kind: rnn in the styles bahdanau "
            "and luong, and rnn_language_model; set parts: 2"
        )
    if span and site.use != "causal":
        raise ConfigError("span: it counts back from a token of the same text; remove it in attention to a source")


def _over_all_tokens(weights: Tensor, length: Tensor) -> Tensor:
    """Weights over the last L states [B, T, L] → over all tokens fed [B, 1, T, S]. For display only: it synchronises."""
    rows, extent, span = weights.shape
    at = torch.arange(extent, device=length.device)[:, None] - span + torch.arange(span, device=length.device)
    place = length[:, None, None] + at
    spread = weights.new_zeros(rows, extent, int(length.max()) + extent)
    return spread.scatter_add(-1, place.clamp_min(0), weights.where(place >= 0, 0.0))[:, None]


def _before(store: KeyValueStore, place: Tensor, layout: Layout | None) -> tuple[SourceStates, Tensor]:
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
