"""Synthesizer: attention whose weights do not depend on the keys."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site, join_heads, split_heads
from weft.attention.core.dot_product import masked_softmax
from weft.attention.core.single_head import CountedSource, SourceStates
from weft.attention.core.synthetic_scores import DenseScores, FactoredDenseScores, FactoredRandomScores, RandomScores, Synthetic
from weft.batch import Layout
from weft.layers.dropout import dropout
from weft.layers.history import History
from weft.state import State

Form = Literal["dense", "random", "fixed", "factored_dense", "factored_random"]


class SynthesizerAttention(Attention):
    """softmax(B) V, where the scores B come from the query's token alone (dense) or from a table of positions (random, fixed).

    The published mechanism is self-attention. In cross use, an extension, scores are over source positions and the rows of a
    table are target positions; positions after the last row use the last row.

    form: dense (from the token), random (a trained table), fixed (a table as it was drawn), factored_dense (the product of two
      vectors of the token), factored_random (a trained table of low rank)
    layers: layers of the network that computes scores from a token, for the dense forms
    rank: rank of the table of factored_random
    max_length: number of positions; no sequence may be longer
    bias: whether the projections have a bias
    """

    paper = "Tay et al. 2020"
    uses = frozenset({"encoder", "causal", "cross"})
    weights_sum = "one"
    packs = packs_square = True

    def __init__(
        self,
        site: Site,
        *,
        form: Form = "dense",
        layers: Literal[1, 2] = 2,
        rank: PositiveInt = 8,
        max_length: PositiveInt = 512,
        bias: bool = True,
    ) -> None:
        super().__init__(site)
        self.max_length: int = max_length
        self.width = site.head_dim
        self.value = nn.Linear(site.memory_dim, site.dim, bias=bias)
        self.out = nn.Linear(site.dim, site.dim, bias=bias)
        self.scores = _scores(form, site, layers, rank, max_length)

    def read(self, memory: Tensor, layout: Layout | None) -> State:
        self.check_length(memory, layout)
        values = self.value(memory)
        return CountedSource.first(SourceStates.of(values, values, layout))

    def begin(self, rows: int, room: int | None) -> State:
        return History.empty(rows, self.site.dim, room, self.out.weight)

    def extend(self, x: Tensor, state: State, layout: Layout | None) -> State:
        return state.append(self.value(x), layout)[0]

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        rows = query.size(0)
        if append is None:
            source, place, state = state.source, state.places(query, layout), state.after(query, layout)
        else:
            self.check_length(append, layout)
            source, place, state = self._own(append, state, layout)
        mask = source.mask(rows, layout)
        if self.site.use == "causal":
            before = source.places(rows)[:, None] <= place[..., None]
            mask = before if mask is None else mask & before
        weights = self._weights(query, place, source, None if mask is None else mask[:, None])
        context = self._mix(weights, source)
        return Attended(self.out(join_heads(context).to(query.dtype)), state, weights if need_weights else None)

    def _own(self, x: Tensor, state: State, layout: Layout | None) -> tuple[SourceStates, Tensor, State]:
        """The sequence itself as a source, and the positions of its new tokens."""
        values = self.value(x)
        rank = torch.arange(x.size(1), device=x.device)[None] if layout is None else layout.positions
        if state is None:
            return SourceStates.of(values, values, layout), rank, None
        fresh = state.fresh
        state, place = state.append(values, layout)
        if fresh:
            return SourceStates.of(values, values, layout), rank, state
        # A cell's index is its token's position, so cells after a query also include those that were never fed.
        return SourceStates(state.tokens, state.tokens), place, state

    def _weights(self, query: Tensor, place: Tensor, source: SourceStates, mask: Tensor | None) -> Tensor:
        """[B, H, T, S]. Padding may be at positions beyond `max_length`; it is masked."""
        scores = self.scores(query, place.clamp_max(self.max_length - 1))
        rows, count = query.size(0), source.keys.size(1)
        if source.positions is None and count <= self.max_length:
            scores = scores[..., :count]
        else:
            key = source.places(rows).clamp_max(self.max_length - 1)
            key = key[:, None, None].expand(rows, scores.size(1), scores.size(2), count)
            scores = scores.expand(rows, -1, -1, -1).gather(-1, key)
        weights = masked_softmax(scores, mask)
        return weights.expand(rows, -1, -1, -1)

    def _mix(self, weights: Tensor, source: SourceStates) -> Tensor:
        """The context [B, H, T, D] for the weights; the beams of a source share its values."""
        values = split_heads(source.values, self.site.heads)
        kept = dropout(weights, self.site.dropout, self.training).to(values.dtype)
        sources, beams = values.size(0), weights.size(0) // values.size(0)
        if beams == 1:
            return kept @ values
        return (kept.unflatten(0, (sources, beams)) @ values[:, None]).flatten(0, 1)


def _scores(form: Form, site: Site, layers: int, rank: int, length: int) -> Synthetic:
    if form == "dense":
        return DenseScores(site.dim, site.heads, length, layers)
    if form == "factored_dense":
        return FactoredDenseScores(site.dim, site.heads, length, layers)
    if form == "factored_random":
        return FactoredRandomScores(site.heads, length, rank)
    return RandomScores(site.heads, length, trained=form == "random")
