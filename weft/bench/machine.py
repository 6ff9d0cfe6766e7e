"""The machine: its description for reports, and timing on it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

import torch

from weft.version import VERSION


def about(device: torch.device | None = None) -> dict[str, str]:
    """The date, the device (by default the GPU if there is one) and the versions."""
    cuda = torch.cuda.is_available() if device is None else device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else f"CPU ({platform.machine()}, {os.cpu_count()} cores)"
    found = {"date": time.strftime("%Y-%m-%d"), "device": name, "python": platform.python_version()}
    return found | {"torch": torch.__version__, "weft": VERSION}


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
