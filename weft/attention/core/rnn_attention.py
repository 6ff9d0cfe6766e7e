"""Single-head attention over a source that is stored once for all its beams, and the scores of its queries and keys.

Shapes: G sources · K beams · B = G·K rows · T queries · S keys · A width of a key · M width of the memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site
from weft.attention.core.dot_product import masked_softmax
from weft.data.batch import Layout
from weft.layers.decoder_state import State, shared, spread
from weft.layers.embeddings_and_rotary_positions import token_positions
from weft.layers.kernels.cpp_plan import Keys, NotPlanned, PlanBuilder, Register
from weft.layers.linear_norm_dropout import dropout, to_float32
from weft.layers.step_recorder import StepsOfCaller, record, recording

QUERIES = 32
"""Queries that a network scores at once. Its hidden layer has a cell per pair, so this bounds its memory."""

LuongScore = Literal["dot", "general", "concat"]


@dataclass
class SourceStates:
    """keys [G, S, A] · values [G, S, M] · segments, positions, key_mask [G, S], None if all tokens are real and in order.

    key_mask follows from the segments, but is stored because every decoding step needs it.
    """

    keys: Tensor = shared()
    values: Tensor = shared()
    segments: Tensor | None = shared(default=None)
    positions: Tensor | None = shared(default=None)
    key_mask: Tensor | None = shared(default=None)

    @staticmethod
    def of(keys: Tensor, values: Tensor, layout: Layout | None) -> SourceStates:
        if layout is None:
            return SourceStates(keys, values)
        return SourceStates(keys, values, layout.segments, layout.positions, layout.mask)

    def real(self, rows: int) -> Tensor:
        """[B, S] bool: which keys are real tokens."""
        if self.key_mask is None:
            return torch.ones(rows, self.keys.size(1), dtype=torch.bool, device=self.keys.device)
        return spread(self.key_mask, rows)

    def mask(self, rows: int, layout: Layout | None) -> Tensor | None:
        """[B, T or 1, S]: real keys; in packed rows only those of the query's own sentence. None: all keys."""
        if self.segments is None:
            return None
        if layout is not None and layout.packed:
            return (self.segments[:, None] == layout.segments[:, :, None]) & layout.mask[:, :, None]
        return self.real(rows)[:, None]

    def places(self, rows: int) -> Tensor:
        """[B, S]: the position of each key in its sentence."""
        if self.positions is None:
            return torch.arange(self.keys.size(1), device=self.keys.device).expand(rows, -1)
        return spread(self.positions, rows)

    def planned(self) -> Keys:
        """For a native search."""
        return Keys.masked(self.keys, self.values, self.key_mask)

    def lengths(self, mask: Tensor | None) -> Tensor:
        """[B or 1, T or 1]: the length of the sentence that each query attends to, from its `mask`."""
        if mask is None:
            return torch.full((1, 1), self.keys.size(1), device=self.keys.device)
        return mask.sum(-1)


@dataclass
class CountedSource:
    """A source and the number of queries that each row has made so far: queries [B]."""

    source: SourceStates
    queries: Tensor

    @staticmethod
    def first(source: SourceStates) -> CountedSource:
        return CountedSource(source, torch.zeros(source.keys.size(0), dtype=torch.long, device=source.keys.device))

    def places(self, query: Tensor, layout: Layout | None) -> Tensor:
        """[B, T]: the positions of the next queries [B, T, D]."""
        return self.queries[:, None] + token_positions(query, layout)

    def after(self, query: Tensor, layout: Layout | None) -> CountedSource:
        return CountedSource(self.source, self.queries + (query.size(1) if layout is None else layout.lengths))


class ScoreFunction(nn.Module, StepsOfCaller, ABC):
    """The score of a query and a key. `key` computes the part that depends on the memory [G, S, M] alone, [G, S, A]."""

    key: nn.Module

    @abstractmethod
    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        """query [G, T, D] → [G, T, S]."""

    def plan(self, draft: PlanBuilder, query: Register, width: int) -> Register:
        """The plan of the whole attention, whose context has this width."""
        raise NotPlanned(type(self).__name__)


class AdditiveScore(ScoreFunction):
    """vᵀ tanh(W q + b + U k) (Bahdanau et al. 2015); normed, v is g·v/‖v‖ (Salimans & Kingma 2016).

    Without b it is the concat score of Luong et al. 2015, whose matrix [W U] is stored in two parts so that U k is computed
    once. `exact` computes in float32 at any precision: if a discrete choice depends on the score, rounding could change it.
    """

    def __init__(
        self, dim: int, memory: int, hidden: int, *, bias: bool = True, normed: bool = False, exact: bool = False
    ) -> None:
        super().__init__()
        linear = ExactLinear if exact else nn.Linear
        self.query = linear(dim, hidden, bias=bias)
        self.key = linear(memory, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.gain = nn.Parameter(torch.full((1,), hidden**-0.5)) if normed else None
        self.exact = exact

    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        projected = self.query(query)
        parts = [projected] if projected.size(1) <= QUERIES else projected.split(QUERIES, 1)
        scores = [self.energy(part, source.keys) for part in parts]
        return scores[0] if len(scores) == 1 else torch.cat(scores, 1)

    def energy(self, query: Tensor, keys: Tensor, features: Tensor | None = None) -> Tensor:
        """query [G, T, A] and keys [G, S, A], both projected, and further features inside the tanh [G, T, S, A] → [G, T, S]."""
        hidden = query[:, :, None] + keys[:, None]
        hidden = torch.tanh(hidden if features is None else hidden + features)
        weight = self._weight()
        energy = (exact_linear if self.exact else F.linear)(hidden, weight)[..., 0]
        if recording():
            self._record_energy((query, keys, features), hidden, weight, energy)
        return energy

    def _record_energy(
        self, given: tuple[Tensor, Tensor, Tensor | None], hidden: Tensor, weight: Tensor, energy: Tensor
    ) -> None:
        query, keys, features = given
        cells, formula = "row query key channel", "tanh(q + k)" if features is None else "tanh(q + k + features)"
        operands = {"q": (query, "row query channel"), "k": (keys, "row key channel")}
        if features is not None:
            operands["features"] = (features, cells)
        record("hidden", hidden, cells, formula, **operands)
        operands = {"v": (weight[0], "channel"), "hidden": (hidden, cells)}
        record("scores", energy, "row query key", "sum(v * hidden, channel)", **operands)

    def plan(self, draft: PlanBuilder, query: Register, width: int) -> Register:
        return draft.attend_additive(draft.linear(self.query, query), self._weight(), SourceStates.planned, width)

    def _weight(self) -> Tensor:
        """v [1, A]."""
        return self.score.weight if self.gain is None else self.gain * F.normalize(self.score.weight, dim=-1)


class DotScore(ScoreFunction):
    """qᵀk (Luong et al. 2015); scaled, qᵀk/√d (Vaswani et al. 2017); general, qᵀW k with a learned matrix W.

    If memory and query differ in width, the score is always general.
    """

    def __init__(self, dim: int, memory: int, *, scale: bool = False, general: bool = False) -> None:
        super().__init__()
        self.key = nn.Linear(memory, dim, bias=False) if general or memory != dim else nn.Identity()
        self.factor = 1 / math.sqrt(dim) if scale else 1.0

    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        scores = torch.bmm(query if self.factor == 1 else query * self.factor, source.keys.transpose(1, 2))
        if recording():
            formula = "sum(q * k, channel)" + ("" if self.factor == 1 else " * factor")
            operands = {"q": (query, "row query channel"), "k": (source.keys, "row key channel")}
            record("scores", scores, "row query key", formula, **operands, factor=self.factor)
        return scores

    def plan(self, draft: PlanBuilder, query: Register, width: int) -> Register:
        return draft.attend_memory(query, 1, SourceStates.planned, width, self.factor)


class CosineScore(ScoreFunction):
    """β cos(q, k) (Graves et al. 2014), with a learned strength β. If memory and query differ in width, k is projected."""

    def __init__(self, dim: int, memory: int, strength: float) -> None:
        super().__init__()
        self.key = UnitVectors(memory, dim)
        self.strength = nn.Parameter(torch.full((1,), strength))

    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        scores = torch.bmm(self.strength * F.normalize(query, dim=-1), source.keys.transpose(1, 2))
        if recording():
            axes, cells = "row query channel", "row query key"
            unit = F.normalize(query, dim=-1)
            record("direction", unit, axes, "q / norm(q, channel)", q=(query, axes))
            operands = {"q": (unit, axes), "k": (source.keys, "row key channel"), "beta": (self.strength[0], "")}
            record("scores", scores, cells, "beta * sum(q * k, channel)", **operands)
        return scores


class UnitVectors(nn.Module):
    """Vectors of length 1: x / ‖x‖, after a projection if the widths differ."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(inputs, width, bias=False) if inputs != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.project(x), dim=-1)


class LocationScore(ScoreFunction):
    """(W q)_j for the key at position j (Luong et al. 2015), independent of the keys, for up to `max_length` positions."""

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self.place = nn.Linear(dim, max_length, bias=False)
        self.key, self.max_length = nn.Identity(), max_length

    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        # Padding may lie beyond the last position; it is masked.
        place = source.places(query.size(0)).clamp_max(self.max_length - 1)
        scores = self.place(query).gather(-1, place[:, None].expand(-1, query.size(1), -1))
        if recording():
            operands = {"W": (self.place.weight[place], "row key input"), "x": (query, "row query input")}
            record("scores", scores, "row query key", "sum(W * x, input)", **operands)
        return scores


def luong_score(kind: LuongScore, site: Site) -> ScoreFunction:
    """One of the three scores that depend on the key (Luong et al. 2015, equation 8)."""
    if kind == "concat":
        return AdditiveScore(site.dim, site.memory_dim, site.dim, bias=False)
    return DotScore(site.dim, site.memory_dim, general=kind == "general")


class ExactLinear(nn.Linear):
    """A linear layer that computes in float32, regardless of autocast."""

    def forward(self, x: Tensor) -> Tensor:
        return exact_linear(x, self.weight, self.bias)


def exact_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear map in float32 (or float64), regardless of autocast and the precision of the weights."""
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(to_float32(x), to_float32(weight), None if bias is None else to_float32(bias))


class SingleHead(nn.Module):
    """softmax(score) over the states of a source. The beams of a source become further queries over its single memory."""

    def __init__(self, site: Site, score: ScoreFunction) -> None:
        super().__init__()
        self.score, self.dropout = score, site.dropout

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> SourceStates:
        return SourceStates.of(self.score.key(memory), memory if values is None else values, layout)

    def scores(self, query: Tensor, source: SourceStates) -> Tensor:
        """query [B, T, D] → [B, T, S]."""
        return unfold(self.score(fold(query, source.keys.size(0)), source), query.size(0))

    def mix(self, weights: Tensor, source: SourceStates) -> Tensor:
        """weights [B, T, S] → [B, T, M], with dropout of the weights in training."""
        used = dropout(weights, self.dropout, self.training)
        context = unfold(torch.bmm(fold(used, source.values.size(0)), source.values), weights.size(0))
        if recording():
            operands = {"weights": (weights, "row query key"), "v": (spread(source.values, weights.size(0)), "row key channel")}
            record("context", context, "row query channel", "sum(weights * v, key)", **operands)
        return context

    def run(self, query: Tensor, source: SourceStates, layout: Layout | None, need_weights: bool) -> Attended:
        weights = masked_softmax(self.scores(query, source), source.mask(query.size(0), layout))
        return Attended(self.mix(weights, source), source, weights[:, None] if need_weights else None)


class SourceAttention(Attention):
    """One head over a source."""

    cost = "n²"
    uses = frozenset({"cross"})

    def __init__(self, site: Site, score: ScoreFunction) -> None:
        super().__init__(site)
        self.head = SingleHead(site, score)
        self.context_width = site.memory_dim

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> State:
        return self.head.read(memory, layout, values)


class ScoredAttention(SourceAttention):
    """An attention defined by its score alone: α = softmax(e), and the context is Σ α_j h_j over the memory itself."""

    weights_sum = "one"
    ignores_key_order = True
    supports_packing = packing_is_quadratic = True

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        return self.head.run(query, state, layout, need_weights)

    def plan(self, draft: PlanBuilder, query: Register) -> Register:
        return draft.part(self.head.score, query, self.context_width)


def fold(x: Tensor, sources: int) -> Tensor:
    """[B, T, …] → [G, K·T, …]."""
    return x if x.size(0) == sources else x.reshape(sources, x.size(0) // sources * x.size(1), *x.shape[2:])


def unfold(x: Tensor, rows: int) -> Tensor:
    """[G, K·T, …] → [B, T, …]."""
    return x if x.size(0) == rows else x.reshape(rows, x.size(0) * x.size(1) // rows, *x.shape[2:])


def kept(real: Tensor | None, t: int, new: Tensor, old: Tensor) -> Tensor:
    """`new`, or `old` in rows whose query t is padding, by real [B, T] bool (None: all real); both [B] or [B, S]."""
    if real is None:
        return new
    return torch.where(real[:, t : t + 1] if new.dim() == 2 else real[:, t], new, old)
