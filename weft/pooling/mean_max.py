"""Mean and max pooling."""

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
