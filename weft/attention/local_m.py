"""Attention to a window that moves along the source with the target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor

from weft.attention.base import Attended, Site
from weft.attention.kernel import masked_softmax
from weft.attention.scores import LuongScore, luong_score
from weft.attention.single import Source, SourceAttention
from weft.batch import Layout
from weft.state import State


@dataclass
class Stepped:
    """The source, and how many queries each row has asked [B]."""

    source: Source
    asked: Tensor


class LocalMonotonicAttention(SourceAttention):
    """Query t looks at the source positions t − D … t + D alone: α = softmax(e) over this window, the context is Σ α_j h_j.

    Past the end of the source, of which the paper does not speak, the window stays on its last token.

    window: D, how far to either side a query sees
    score: dot sᵀh, general sᵀWh, or concat vᵀtanh(W[s; h])
    """

    paper = "Luong et al. 2015, local-m"
    weights_sum = "one"
    reach = "pattern"
    packs = packs_square = True

    def __init__(self, site: Site, *, window: PositiveInt = 10, score: LuongScore = "general") -> None:
        super().__init__(site, luong_score(score, site))
        self.window = window

    def sees(self, length: int) -> Tensor:
        place = torch.arange(length)
        return (place[:, None] - place).abs() <= self.window

    def begin(self, source: Source) -> Stepped:
        return Stepped(source, torch.zeros(source.keys.size(0), dtype=torch.long, device=source.keys.device))

    def look(self, query: Tensor, state: State, layout: Layout | None, need_weights: bool) -> Attended:
        source, (rows, extent) = state.source, query.shape[:2]
        rank = torch.arange(extent, device=query.device) if layout is None else layout.positions
        mask = source.mask(rows, layout)
        centre = torch.minimum(state.asked[:, None] + rank, source.lengths(mask) - 1)
        near = (source.places(rows)[:, None] - centre[..., None]).abs() <= self.window
        weights = masked_softmax(self.head.scores(query, source), near if mask is None else near & mask)
        state = Stepped(source, state.asked + (extent if layout is None else layout.lengths))
        return Attended(self.head.mix(weights, source), state, weights[:, None] if need_weights else None)
