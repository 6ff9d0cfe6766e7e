"""Scores of a query q against a key k: by a small network, by products, or by the query alone.

Shapes: G sources · T queries · S keys · A width of a key.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Site
from weft.attention.core.single_head import ScoreFunction, SourceStates

QUERIES = 32
"""Queries that a network scores at once. Its hidden layer has a cell per pair, so this bounds its memory."""

LuongScore = Literal["dot", "general", "concat"]


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

    def project(self, query: Tensor) -> Tensor:
        """W q + b."""
        projected: Tensor = self.query(query)
        return projected

    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        projected = self.project(query)
        parts = [projected] if projected.size(1) <= QUERIES else projected.split(QUERIES, 1)
        scores = [self.energy(part, source.keys) for part in parts]
        return scores[0] if len(scores) == 1 else torch.cat(scores, 1)

    def energy(self, query: Tensor, keys: Tensor, features: Tensor | None = None) -> Tensor:
        """query [G, T, A] and keys [G, S, A], both projected, and further features inside the tanh [G, T, S, A] → [G, T, S]."""
        hidden = query[:, :, None] + keys[:, None]
        hidden = torch.tanh(hidden if features is None else hidden + features)
        weight = self.score.weight if self.gain is None else self.gain * F.normalize(self.score.weight, dim=-1)
        return (exact_linear if self.exact else F.linear)(hidden, weight)[..., 0]


class DotScore(ScoreFunction):
    """qᵀk (Luong et al. 2015); scaled, qᵀk/√d (Vaswani et al. 2017); general, qᵀW k with a learned matrix W.

    If memory and query differ in width, the score is always general.
    """

    def __init__(self, dim: int, memory: int, *, scale: bool = False, general: bool = False) -> None:
        super().__init__()
        self.key = nn.Linear(memory, dim, bias=False) if general or memory != dim else nn.Identity()
        self.factor = 1 / math.sqrt(dim) if scale else 1.0

    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        return torch.bmm(query if self.factor == 1 else query * self.factor, source.keys.transpose(1, 2))


class LocationScore(ScoreFunction):
    """(W q)_j for the key at position j (Luong et al. 2015), independent of the keys, for up to `max_length` positions."""

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self.place = nn.Linear(dim, max_length, bias=False)
        self.key, self.max_length = nn.Identity(), max_length

    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        # Padding may lie beyond the last position; it is masked.
        place = source.places(query.size(0)).clamp_max(self.max_length - 1)
        scores: Tensor = self.place(query)
        return scores.gather(-1, place[:, None].expand(-1, query.size(1), -1))


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
        return F.linear(at_least_float(x), at_least_float(weight), None if bias is None else at_least_float(bias))


def at_least_float(x: Tensor) -> Tensor:
    """`x`, converted to float32 if it is in half precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
