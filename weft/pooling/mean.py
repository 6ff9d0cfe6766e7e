"""Mean pooling."""

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
