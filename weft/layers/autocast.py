"""Autocast for tensors that torch does not cast itself."""

from __future__ import annotations

import torch
from torch import Tensor


def computed_in(x: Tensor) -> Tensor:
    """`x` in the precision in which autocast computes products, so that not every use converts it again."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if kind != "meta" and torch.is_autocast_enabled(kind) else x
