"""Timing on a CPU or a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

Figures = dict[str, float]
"""Measurements by name; systems are compared by the first one."""


def synchronize(device: str) -> None:
    """Waits for the GPU; does nothing on a CPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], object], times: int, device: str = "cuda") -> float:
    """Mean seconds of one call, over `times` calls."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (time.perf_counter() - began) / times
