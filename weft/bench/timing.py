"""Timing."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def timed(work: Callable[[], object], device: torch.device, *, times: int, within: float) -> list[float]:
    """Seconds of each run: `times` runs, or as many as fit `within` that many seconds, at least one.

    To compare with limits, take the fastest: disturbances only make work slower.
    """
    found: list[float] = []
    while not found or (len(found) < times and sum(found) < within):
        finish(device)
        began = time.perf_counter()
        work()
        finish(device)
        found.append(time.perf_counter() - began)
    return found


def finish(device: torch.device) -> None:
    """Waits until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
