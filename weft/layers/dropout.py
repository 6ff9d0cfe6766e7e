"""Dropout with fast random numbers on a CPU."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

Rate = Annotated[float, Field(ge=0, lt=1)]
"""A dropout rate."""


def dropout(x: Tensor, share: float, training: bool = True) -> Tensor:
    """In training, `x` with a random `share` of its entries set to 0 and the others scaled up; otherwise `x` itself.

    On a CPU each 64 random bits give four 16-bit numbers, which is five times as fast as torch's dropout; the share is then
    exact to 2⁻¹⁶. The numbers come from torch's generator, so a seed determines them.
    """
    if not training or share == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, share, training)
    count = x.numel()
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    keep = (bits >= round(share * 2**16) - 2**15).to(x.dtype).mul_(1 / (1 - share))
    return x * keep.view(x.shape)
