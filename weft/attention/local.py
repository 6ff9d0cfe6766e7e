"""Attention to the neighbourhood."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor

from weft.attention.base import Attended, Attention, Site
from weft.attention.multihead import MultiHead
from weft.batch import Layout
from weft.state import State


class LocalAttention(Attention):
    """Every query looks at the keys at most `window` positions away (in causal use: at the last `window`, itself included).

    window: how far a query sees
    bias: whether the projections have one
    """

    paper = "Luong et al. 2015; Beltagy et al. 2020"
    cost = "n·window"
    uses = frozenset({"encoder", "causal"})
    weights_sum = "one"
    reach = "pattern"
    packs = True

    def __init__(self, site: Site, *, window: PositiveInt = 64, bias: bool = True) -> None:
        super().__init__(site)
        self.window = window
        self.heads = MultiHead(site, bias=bias, pattern=self.near)

    def near(self, query: Tensor, key: Tensor) -> Tensor:
        """[B, 1, T, S] for query positions [B, T, 1] and key positions [B, 1, S]."""
        away = query - key
        if self.site.use == "causal":
            return ((away >= 0) & (away < self.window))[:, None]
        return (away.abs() <= self.window)[:, None]

    def sees(self, length: int) -> Tensor:
        place = torch.arange(length)
        return self.near(place[None, :, None], place[None, None, :])[0, 0]

    def start(
        self, memory: Tensor | None = None, layout: Layout | None = None, *, rows: int = 1, room: int | None = None
    ) -> State:
        return self.heads.start(memory, layout, rows, room)

    def forward(
        self,
        query: Tensor,
        state: State,
        *,
        append: Tensor | None = None,
        layout: Layout | None = None,
        need_weights: bool = False,
    ) -> Attended:
        return self.heads.run(query, state, append, layout, need_weights)
