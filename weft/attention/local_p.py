"""Attention to a window whose place in the source is predicted from the query."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor

from weft.attention.base import Attended, Site
from weft.attention.kernel import masked_softmax
from weft.attention.scores import ExactLinear, LuongScore, luong_score
from weft.attention.single import SourceAttention
from weft.batch import Layout
from weft.state import State


class LocalPredictiveAttention(SourceAttention):
    """A query looks around p = S·σ(vᵀ tanh(W s)): weights softmax(e)_j · exp(−(j − p)²/2σ²) with σ = D/2.

    The softmax is over p − D … p + D, and S is the source's own length. Weights sum to less than 1 away from p, as published.

    window: D, how far to either side of p a query sees
    score: dot sᵀh, general sᵀWh, or concat vᵀtanh(W[s; h])
    """

    paper = "Luong et al. 2015, local-p"
    weights_sum = "at most one"
    reach = "data"
    packs = packs_square = True

    def __init__(self, site: Site, *, window: PositiveInt = 10, score: LuongScore = "general") -> None:
        super().__init__(site, luong_score(score, site))
        self.window = window
        self.inner = ExactLinear(site.dim, site.dim, bias=False)
        self.place = ExactLinear(site.dim, 1, bias=False)

    def look(self, query: Tensor, state: State, layout: Layout | None, need_weights: bool) -> Attended:
        rows = query.size(0)
        mask = state.mask(rows, layout)
        away = state.places(rows)[:, None] - self.centre(query, state.lengths(mask))[..., None]
        near = away.abs() <= self.window
        inside = masked_softmax(self.head.scores(query, state), near if mask is None else near & mask)
        weights = inside * torch.exp(-2 * (away / self.window) ** 2).to(inside.dtype)
        return Attended(self.head.mix(weights, state), state, weights[:, None] if need_weights else None)

    def centre(self, query: Tensor, lengths: Tensor) -> Tensor:
        """[B, T]: p. In float32 throughout, since in bf16 position 257 is 256."""
        share: Tensor = self.place(torch.tanh(self.inner(query)))[..., 0].sigmoid()
        return lengths * share
