"""How much memory a process has needed, and what becomes of what it frees."""

from __future__ import annotations

import ctypes
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

KEPT = 1 << 30
"""Bytes up to which freed memory is kept, of a block and at the end of the heap."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Their names in glibc's malloc.h."""


def keep_freed() -> None:
    """Has the memory of freed tensors kept for the next ones, where the C library is glibc.

    By itself it gives every block of more than 32 MB back at once, and a step of training on a CPU then spends time on having
    the system clear pages anew.
    """
    with suppress(AttributeError, OSError, TypeError):  # another library, another system
        library = ctypes.CDLL(None)
        for name in (MMAP_THRESHOLD, TRIM_THRESHOLD):
            library.mallopt(name, KEPT)


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
