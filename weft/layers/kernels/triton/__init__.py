"""Triton kernels for NVIDIA GPUs, and a probe. All modules import Triton: import them only where `triton_available`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _store_one(place):
    tl.store(place, 1)


def probe(index: int) -> None:
    """Runs a kernel on the GPU with this index. Raises whatever goes wrong."""
    with torch.cuda.device(index):
        place = torch.zeros(1, dtype=torch.int32, device="cuda")
        _store_one[(1,)](place)
        if int(place) != 1:
            raise RuntimeError("a kernel ran but wrote nothing")
