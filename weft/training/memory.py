"""How much memory a process has needed."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch


def peak_memory(device: torch.device) -> int:
    """Bytes: on a GPU the most that tensors took at once; elsewhere the most the process had, the interpreter included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    # Not getrusage where it can be helped: on Linux a process begins with the peak of the one that started it.
    if status.exists() and (found := re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text("utf-8"), re.MULTILINE)):
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
