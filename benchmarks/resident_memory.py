"""The resident memory of a process on Linux, and keeping freed memory in it."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from pathlib import Path


def keep_freed_memory() -> None:
    """Configures glibc, which by default returns every freed block of more than 32 MB to the system."""
    trim, mmap = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
    with suppress(AttributeError, OSError, TypeError):  # another C library
        for name in (trim, mmap):
            ctypes.CDLL(None).mallopt(name, 1 << 30)


def high_water() -> int:
    """The peak resident size of this process. (The one of `resource` includes the parent's.)"""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024
