"""How long work takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def timed(work: Callable[[], object], device: torch.device, *, times: int, within: float) -> list[float]:
    """Seconds of each of so many times, or of as many as end `within` so many seconds, at least of one.

    The fastest is what counts where ceilings are compared, since nothing makes work faster than it is.
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
    """Waits until the device has done all it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
