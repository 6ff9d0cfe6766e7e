"""How work on a GPU is timed."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

Figures = dict[str, float]
"""What was measured, by name; the first is what systems are compared by."""


def timed(work: Callable[[], object], times: int) -> float:
    """Seconds of one time, by doing it several times."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times
