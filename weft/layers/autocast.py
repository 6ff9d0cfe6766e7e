"""What autocast does, done where it does not reach."""

from __future__ import annotations

import torch
from torch import Tensor


def computed_in(x: Tensor) -> Tensor:
    """`x` in the precision that autocast has products computed in, so that not every use of it has to convert it."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if kind != "meta" and torch.is_autocast_enabled(kind) else x
