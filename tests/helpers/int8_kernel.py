"""FBGEMM's kernel for int8 layers, written plainly, for CPUs on which FBGEMM itself rounds to half as many levels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft.layers import int8

EXACT = torch.cpu._is_vnni_supported()

FLIPPED = 5e-2
"""How far scores may differ where torch and the kernels compute in another order: a number between two levels of int8 may
become either."""


def multiply(x: Tensor, scale: float, zero: int, packed: object) -> Tensor:
    """x [..., I] in float32, rounded by a scale and a zero point, times packed weights [O, I] → [..., O] in float32."""
    weight = torch.ops.quantized.linear_unpack(packed)[0]
    rounded = (x * (1 / scale)).nan_to_num(0.0).round().clamp(-zero, 255 - zero)
    sums = rounded.double() @ weight.int_repr().double().t()  # exact
    return sums.float() * (weight.q_per_channel_scales().float() * scale)


def with_all_levels(patch: pytest.MonkeyPatch) -> None:
    """Int8 layers without C++ kernels compute with the levels of a CPU that has VNNI."""
    if not EXACT:
        patch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
        patch.setattr(int8, "KERNEL", multiply)
