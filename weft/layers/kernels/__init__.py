"""Faster ways to compute: CUDA graphs, Triton kernels for GPUs (`triton`) and C++ kernels for CPUs (`cpp`).

This module says where the Triton kernels run. Each has a plain counterpart that computes the same, for other devices.
"""

import importlib.util
import warnings

import torch
from torch import Tensor

_PROBED: dict[int, tuple[bool, bool]] = {}
"""For each GPU by index: whether it is modern, and whether Triton kernels run on it."""


def triton_available(tensor: Tensor) -> bool:
    """Whether Triton kernels can run on a tensor's device."""
    return probe_device(tensor.device)[1]


def modern(device: torch.device) -> bool:
    """Whether a device is a GPU with fused half-precision kernels: NVIDIA's Ampere generation (2020) or later."""
    return probe_device(device)[0]


def computes_bf16(device: torch.device) -> bool:
    """Whether a device computes in bf16. Other CPUs emulate it, thirty times slower than float32, or not at all (LSTM)."""
    if device.type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def widest_float(device: torch.device) -> torch.dtype:
    """The type for sums of many numbers: float64, which Apple's GPUs lack."""
    return torch.float32 if device.type == "mps" else torch.float64


def processors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; 1 for other devices."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def probe_device(device: torch.device) -> tuple[bool, bool]:
    """The entry of `_PROBED` for a device, probed on first use: torch.compile cannot trace that, so call this before it."""
    if device.type != "cuda":
        return False, False
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _PROBED:
        capable = torch.cuda.get_device_capability(index) >= (8, 0)
        _PROBED[index] = capable, capable and _works(index)
    return _PROBED[index]


def _works(index: int) -> bool:
    """Whether a kernel compiles and runs on this GPU. An installed Triton may still fail: it calls the C compiler."""
    if importlib.util.find_spec("triton") is None:
        return False
    from weft.layers.kernels.triton import probe

    try:
        probe(index)
    except Exception as error:  # Triton calls external tools, which may raise anything
        reason = " ".join(str(error).split())[:200]
        warnings.warn(
            f"Triton does not work on GPU {index}, so slower kernels are used: {type(error).__name__}: {reason}. Triton needs "
            "a C compiler and Python's header files (on Debian and Ubuntu: apt install gcc python3-dev).",
            stacklevel=2,
        )
        return False
    return True
