"""Residual sum with dropout and layer norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.layers.dropout import dropout
from weft.layers.kernels import triton_available
from weft.layers.precision import to_autocast_dtype

WIDEST = 4096
"""The widest row that the kernel can hold."""


def norm_sum(norm: nn.LayerNorm, x: Tensor, update: Tensor, share: float, training: bool) -> Tensor:
    """norm(x + dropout(update)).

    In training on a GPU, a bf16 update gives a bf16 result, with sum and norm computed in float32: its readers would round it
    anyway.
    """
    if training and _fused(norm, update):
        from weft.layers.kernels.triton.add_norm import add_norm

        seed = torch.randint(1 << 62, (1,), device=x.device) if share else None
        return add_norm(x, update, norm.weight, norm.bias, seed, share, norm.eps)[0]
    return norm(x + dropout(update, share, training))


def residual(x: Tensor, training: bool) -> Tensor:
    """The input of a stack of `norm_sum` sub-layers, in the precision that they return, so that all layers compile to one
    program.
    """
    return to_autocast_dtype(x) if training and triton_available(x) else x


def _fused(norm: nn.LayerNorm, update: Tensor) -> bool:
    return (
        update.dtype == torch.bfloat16 and update.size(-1) <= WIDEST and type(norm) is nn.LayerNorm and triton_available(update)
    )
