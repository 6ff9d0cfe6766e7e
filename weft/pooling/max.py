"""Max pooling."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.batch import Layout
from weft.pooling.base import Pooled, Pooling


class MaxPooling(Pooling):
    """The largest value of each channel over the real tokens."""

    reach = "data"

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        if layout is None:
            return Pooled(memory.amax(1, keepdim=True))
        top = memory.masked_fill(~layout.ok[..., None], -torch.inf).amax(1, keepdim=True)
        return Pooled(torch.where(layout.ok.any(1)[:, None, None], top, 0.0))
