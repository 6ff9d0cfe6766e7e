"""The norm of a sum."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.kernels import serve
from weft.layers.autocast import computed_in
from weft.layers.dropout import dropout

WIDEST = 4096
"""Of rows that a kernel holds at once."""


def norm_sum(norm: nn.LayerNorm, x: Tensor, found: Tensor, share: float, training: bool) -> Tensor:
    """norm(x + dropout(found)).

    In training on a GPU, what was found in bf16 makes the result one too, summed and normed in float32 in between: what reads
    it would round it so.
    """
    if training and _fused(norm, found):
        from weft.kernels.triton.add_norm import add_norm

        seed = torch.randint(1 << 62, (1,), device=x.device) if share else None
        out: Tensor = add_norm(x, found, norm.weight, norm.bias, seed, share, norm.eps)[0]
        return out
    summed: Tensor = norm(x + dropout(found, share, training))
    return summed


def residual(x: Tensor, training: bool) -> Tensor:
    """What enters a stack whose sub-layers end in `norm_sum`: in half precision where that makes it so, so that all layers are
    given the same and are compiled once."""
    return computed_in(x) if training and serve(x) else x


def _fused(norm: nn.LayerNorm, found: Tensor) -> bool:
    return found.dtype == torch.bfloat16 and found.size(-1) <= WIDEST and type(norm) is nn.LayerNorm and serve(found)
