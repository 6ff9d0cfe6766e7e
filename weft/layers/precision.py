"""The precision of tensors: that of autocast, or at least float32."""

from __future__ import annotations

import torch
from torch import Tensor


def to_autocast_dtype(x: Tensor) -> Tensor:
    """`x` in the precision in which autocast computes products, so that not every use converts it again."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if kind != "meta" and torch.is_autocast_enabled(kind) else x


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision of sums: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def to_float32(x: Tensor) -> Tensor:
    """`x`, converted to float32 if it is in half precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
