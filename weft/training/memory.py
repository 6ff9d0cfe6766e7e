"""Peak memory of a process."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: of tensors on a GPU, elsewhere of the whole process including the interpreter."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    # Prefer this to getrusage: on Linux a process inherits the peak of its parent.
    if status.exists() and (peak := re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text("utf-8"), re.MULTILINE)):
        return int(peak[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
