"""Dropout with fast random numbers on a CPU, and residual sums with dropout and layer norm."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from weft.layers.kernels import triton_available
from weft.layers.linear import to_autocast_dtype

Rate = Annotated[float, Field(ge=0, lt=1)]
"""A dropout rate."""

MAX_WIDTH = 4096
"""The widest row that the fused kernel can hold."""


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


def norm_sum(norm: nn.LayerNorm, x: Tensor, update: Tensor, share: float, training: bool) -> Tensor:
    """norm(x + dropout(update)).

    In training on a GPU, a bf16 update gives a bf16 result, with sum and norm computed in float32.
    """
    fused = training and update.dtype == torch.bfloat16 and update.size(-1) <= MAX_WIDTH and type(norm) is nn.LayerNorm
    if fused and triton_available(update):
        from weft.layers.kernels.triton.add_norm import add_norm

        seed = torch.randint(1 << 62, (1,), device=x.device) if share else None
        return add_norm(x, update, norm.weight, norm.bias, seed, share, norm.eps)[0]
    return norm(x + dropout(update, share, training))


def residual(x: Tensor, training: bool) -> Tensor:
    """The input of `norm_sum` sub-layers, in the precision that they return, so that all layers compile to one program."""
    return to_autocast_dtype(x) if training and triton_available(x) else x
