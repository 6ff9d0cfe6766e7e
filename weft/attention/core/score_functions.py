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
"""Queries that a network scores at once: its hidden layer has a cell for every pair, so memory is bounded by this."""

LuongScore = Literal["dot", "general", "concat"]


class AdditiveScore(ScoreFunction):
    """vᵀ tanh(W q + b + U k) (Bahdanau et al. 2015); normed, v is g·v/‖v‖ (Salimans & Kingma 2016).

    Without b it is the concat score of Luong et al. 2015, whose matrix [W U] stands in two pieces here so that U k is
    computed once. `exact` keeps it in float32 whatever precision is asked for: where a choice hangs on the score,
    a rounded score is another choice.
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

    def keys(self, memory: Tensor) -> Tensor:
        found: Tensor = self.key(memory)
        return found

    def asked(self, query: Tensor) -> Tensor:
        """W q + b."""
        found: Tensor = self.query(query)
        return found

    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        asked = self.asked(query)
        parts = [asked] if asked.size(1) <= QUERIES else asked.split(QUERIES, 1)
        found = [self.energy(part, source.keys) for part in parts]
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def energy(self, asked: Tensor, keys: Tensor, features: Tensor | None = None) -> Tensor:
        """asked [G, T, A], keys [G, S, A] and what may join them inside the tanh [G, T, S, A] → [G, T, S]."""
        hidden = asked[:, :, None] + keys[:, None]
        hidden = torch.tanh(hidden if features is None else hidden + features)
        weight = self.score.weight if self.gain is None else self.gain * F.normalize(self.score.weight, dim=-1)
        return (exact_linear if self.exact else F.linear)(hidden, weight)[..., 0]


class DotScore(ScoreFunction):
    """qᵀk (Luong et al. 2015); scaled, qᵀk/√d (Vaswani et al. 2017).

    Where the memory is not as wide as the query, k is P h with a matrix P that makes it so.
    """

    def __init__(self, dim: int, memory: int, *, scale: bool = False) -> None:
        super().__init__()
        self.key = nn.Identity() if memory == dim else nn.Linear(memory, dim, bias=False)
        self.factor = 1 / math.sqrt(dim) if scale else 1.0

    def keys(self, memory: Tensor) -> Tensor:
        found: Tensor = self.key(memory)
        return found

    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        return torch.bmm(query if self.factor == 1 else query * self.factor, source.keys.transpose(1, 2))


class GeneralScore(ScoreFunction):
    """qᵀW k (Luong et al. 2015)."""

    def __init__(self, dim: int, memory: int) -> None:
        super().__init__()
        self.key = nn.Linear(memory, dim, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        found: Tensor = self.key(memory)
        return found

    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        return torch.bmm(query, source.keys.transpose(1, 2))


class LocationScore(ScoreFunction):
    """(W q)_j for the key at position j (Luong et al. 2015): keys are not looked at, and there are `max_length` places."""

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self.place = nn.Linear(dim, max_length, bias=False)
        self.max_length = max_length

    def keys(self, memory: Tensor) -> Tensor:
        return memory

    def forward(self, query: Tensor, source: SourceStates) -> Tensor:
        # Padding may stand further out than there are places; it is masked.
        place = source.places(query.size(0)).clamp_max(self.max_length - 1)
        found: Tensor = self.place(query)
        return found.gather(-1, place[:, None].expand(-1, query.size(1), -1))


def luong_score(kind: LuongScore, site: Site) -> ScoreFunction:
    """One of the three scores that look at the key (Luong et al. 2015, equation 8)."""
    if kind == "dot":
        return DotScore(site.dim, site.memory_dim)
    if kind == "general":
        return GeneralScore(site.dim, site.memory_dim)
    return AdditiveScore(site.dim, site.memory_dim, site.dim, bias=False)


class ExactLinear(nn.Linear):
    """A linear layer that computes in float32, whatever precision is asked for."""

    def forward(self, x: Tensor) -> Tensor:
        return exact_linear(x, self.weight, self.bias)


def exact_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear map in float32 (or float64), whatever autocast or the weights say."""
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(at_least_float(x), at_least_float(weight), None if bias is None else at_least_float(bias))


def at_least_float(x: Tensor) -> Tensor:
    """`x`, in float32 if it is in half precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
