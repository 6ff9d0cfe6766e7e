"""Synthesizer: attention whose weights do not depend on the keys.

Shapes: B rows · H heads · T queries · L positions · D model width.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site, join_heads, split_heads
from weft.attention.core.dot_product import PAIRS, masked_softmax, record_context
from weft.attention.core.rnn_attention import CountedSource, SourceStates
from weft.data.batch import Layout
from weft.layers.decoder_state import History, State, spread
from weft.layers.linear_norm_dropout import dropout
from weft.layers.step_recorder import StepsOfCaller, record, recording

Form = Literal["dense", "random", "fixed", "factored_dense", "factored_random"]


class SyntheticScores(nn.Module, StepsOfCaller, ABC):
    """Scores of all positions."""

    @abstractmethod
    def forward(self, query: Tensor, place: Tensor) -> Tensor:
        """query [B, T, D] at positions `place` [B, T] → [B, H, T, L]; positions that are the same in all rows may be [1, T]."""


class RandomScores(SyntheticScores):
    """A random number for each pair of positions, trained or fixed (Tay et al. 2020, section 3.2)."""

    def __init__(self, heads: int, length: int, trained: bool) -> None:
        super().__init__()
        table = torch.randn(heads, length, length)
        if trained:
            self.table = nn.Parameter(table)
        else:
            self.register_buffer("table", table)

    def forward(self, query: Tensor, place: Tensor) -> Tensor:
        return self.table[:, place].transpose(0, 1)


class FactoredRandomScores(SyntheticScores):
    """The same table as a product R₁R₂ᵀ of rank k (section 3.4)."""

    def __init__(self, heads: int, length: int, rank: int) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.randn(heads, length, rank) * rank**-0.25) for _ in range(2))

    def forward(self, query: Tensor, place: Tensor) -> Tensor:
        left = self.left[:, place].transpose(0, 1)
        scores = left @ self.right.transpose(-1, -2)
        if recording():
            operands = {"left": (left, "row head query rank"), "right": (self.right, "head number rank")}
            record("numbers", scores, "row head query number", "sum(left * right, rank)", **operands)
        return scores


class TokenNetwork(nn.Module):
    """W₂ relu(W₁x + b₁) + b₂ in each head, or Wx + b with one layer: `size` numbers per token."""

    def __init__(self, dim: int, heads: int, size: int, layers: int) -> None:
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.hidden = nn.Linear(dim, dim) if layers == 2 else None
        self.weight = nn.Parameter(torch.empty(heads, dim if self.hidden is None else self.width, size))
        self.bias = nn.Parameter(torch.zeros(heads, 1, size))
        for head in self.weight.detach():
            nn.init.xavier_uniform_(head)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] → [B, H, T, size]."""
        axes = "row head query input"
        if self.hidden is None:
            x = x[:, None]
        else:
            before = split_heads(self.hidden(x), self.heads)
            x = F.relu(before)
            if recording():
                record("rectified", x, axes, "relu(x)", x=(before, axes))
        numbers = x @ self.weight + self.bias
        if recording():
            operands = {"W": (self.weight, "head input number"), "b": (self.bias[:, 0], "head number")}
            formula = "sum(W * x, input) + b"
            record("numbers", numbers, "row head query number", formula, x=(x.expand(-1, self.heads, -1, -1), axes), **operands)
        return numbers


class DenseScores(SyntheticScores):
    """The score of each position, from the query (section 3.1)."""

    def __init__(self, dim: int, heads: int, length: int, layers: int) -> None:
        super().__init__()
        self.network = TokenNetwork(dim, heads, length, layers)

    def forward(self, query: Tensor, place: Tensor) -> Tensor:
        return self.network(query)


class FactoredDenseScores(SyntheticScores):
    """a and b numbers per query with a·b ≥ L; the score of position p·b + q is the product of numbers p and q (section 3.3)."""

    def __init__(self, dim: int, heads: int, length: int, layers: int) -> None:
        super().__init__()
        self.length, outer = length, math.ceil(math.sqrt(length))
        self.outer = TokenNetwork(dim, heads, outer, layers)
        self.inner = TokenNetwork(dim, heads, -(-length // outer), layers)

    def forward(self, query: Tensor, place: Tensor) -> Tensor:
        outer, inner = self.outer(query), self.inner(query)
        products = outer[..., :, None] * inner[..., None, :]
        if recording():
            axes = "row head query"
            operands = {"a": (outer, f"{axes} first"), "b": (inner, f"{axes} second")}
            record("products", products, f"{axes} first second", "a * b", **operands)
        return products.flatten(-2)[..., : self.length]


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
    supports_packing = packing_is_quadratic = True

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
        self.scores: SyntheticScores
        if form == "dense":
            self.scores = DenseScores(site.dim, site.heads, max_length, layers)
        elif form == "factored_dense":
            self.scores = FactoredDenseScores(site.dim, site.heads, max_length, layers)
        elif form == "factored_random":
            self.scores = FactoredRandomScores(site.heads, max_length, rank)
        else:
            self.scores = RandomScores(site.heads, max_length, trained=form == "random")

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> State:
        self.check_length(memory, layout)
        projected = self.value(memory if values is None else values)
        return CountedSource.first(SourceStates.of(projected, projected, layout))

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
        values = split_heads(source.values, self.site.heads)
        used = dropout(weights, self.site.dropout, self.training).to(values.dtype)
        if values.size(0) == rows:
            context = used @ values
        else:  # the beams of a source share its values
            context = (used.unflatten(0, (values.size(0), -1)) @ values[:, None]).flatten(0, 1)
        if recording():
            record_context(context, weights, spread(values, rows))
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
        if recording():
            record("scores", scores.expand(rows, -1, -1, -1), PAIRS)
        return masked_softmax(scores, mask).expand(rows, -1, -1, -1)
