"""Kernels of our own for GPUs, where torch has none that suits short sentences, single steps and large vocabularies.

They are written in Triton, which comes with torch for CUDA. Each stands beside a plain way to compute the same, which serves
where Triton does not work. A file imports Triton at its top, so it is imported only after `serve` has said yes.
"""

from __future__ import annotations

import importlib.util
import warnings

import torch
from torch import Tensor

_modern: bool | None = None
_working: bool | None = None


def serve(tensor: Tensor) -> bool:
    """Whether kernels of our own can work on a tensor where it lies."""
    return modern(tensor.device) and bool(_working)


def modern(device: torch.device) -> bool:
    """Whether a device is a GPU that fused kernels in half precision are made for: NVIDIA's Ampere (2020) or later."""
    try_out(device)
    return device.type == "cuda" and bool(_modern)


def try_out(device: torch.device) -> None:
    """Finds out now what the other two will say. torch.compile cannot look in here, so it is called before."""
    global _modern, _working
    if device.type == "cuda" and _working is None:
        _modern = torch.cuda.get_device_capability(device) >= (8, 0)
        _working = _modern and _works()


def processors(device: torch.device) -> int:
    """How many programs of a kernel run at the same time, at least."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _works() -> bool:
    """Whether a kernel can be made and run. Triton may be there and fail: it calls the machine's C compiler."""
    if importlib.util.find_spec("triton") is None:
        return False
    from weft.kernels.triton.probe import probe

    try:
        probe()
    except Exception as error:  # whatever the tools that Triton calls come up with
        reason = " ".join(str(error).split())[:200]
        warnings.warn(
            f"Triton does not work on this machine, so slower kernels are used: {type(error).__name__}: {reason}. It needs a C "
            "compiler and Python's header files (on Debian and Ubuntu: apt install gcc python3-dev).",
            stacklevel=2,
        )
        return False
    return True
