"""Mean and max pooling, and both with the last vector."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.batch import Layout
from weft.pooling.base import Pooled, Pooling


class MeanPooling(Pooling):
    """The mean of the real tokens."""

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        if layout is None:
            return Pooled(memory.mean(1, keepdim=True))
        total = torch.where(layout.ok[..., None], memory, 0.0).sum(1, keepdim=True)
        return Pooled(total / layout.lengths.clamp_min(1)[:, None, None])


class MaxPooling(Pooling):
    """The largest value of each channel over the real tokens."""

    reach = "data"

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        if layout is None:
            return Pooled(memory.amax(1, keepdim=True))
        top = memory.masked_fill(~layout.ok[..., None], -torch.inf).amax(1, keepdim=True)
        return Pooled(torch.where(layout.ok.any(1)[:, None, None], top, 0.0))


class LastMaxMeanPooling(Pooling):
    """The last vector, the largest values and the mean, side by side: for language models as encoders."""

    paper = "Howard & Ruder 2018"
    ignores_key_order = False

    def __init__(self, dim: int) -> None:
        super().__init__(dim, 3)
        self.max, self.mean = MaxPooling(dim), MeanPooling(dim)

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        last = memory[:, -1:]
        if layout is not None:
            places = (layout.lengths - 1).clamp_min(0)[:, None, None].expand(-1, 1, memory.size(2))
            last = torch.where(layout.ok.any(1)[:, None, None], memory.gather(1, places), 0.0)
        return Pooled(torch.cat([last, self.max(memory, layout).vectors, self.mean(memory, layout).vectors], 1))
