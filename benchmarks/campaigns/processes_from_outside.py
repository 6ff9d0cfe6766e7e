"""The processes of a running server from outside: what they hold, and what an operator or the system does to them."""

from __future__ import annotations

import os
import random
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that any thread of a process has started."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def all_processes(pid: int) -> dict[int, str]:
    """A server's processes with their roles: main, worker, model, reader."""
    found = {pid: "main"}
    for child in children(pid):
        with suppress(OSError):
            environment = Path(f"/proc/{child}/environ").read_bytes()
            server = b"WEFT_WORKER=" in environment and b"WEFT_WORKER=" not in Path(f"/proc/{pid}/environ").read_bytes()
            found[child] = ("model" if b"WEFT_MODELS_FD=" in environment else "worker") if server else "reader"
            found |= dict.fromkeys(children(child), "reader") if server else {}
    return found


@dataclass(frozen=True)
class Held:
    """The memory and time of processes together. rss and pss: MiB; pss counts a shared page once · seconds: of CPU time."""

    rss: float
    pss: float
    descriptors: int
    processes: int
    seconds: float


def held(processes: dict[int, str]) -> Held:
    """Memory, descriptors and CPU time of the processes that still run."""
    rss = pss = seconds = 0.0
    descriptors = count = 0
    for pid in processes:
        with suppress(OSError, StopIteration, ValueError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            amounts = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines[1:]}
            seconds += cpu_seconds(pid)
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
            rss, pss, count = rss + amounts["Rss:"], pss + amounts["Pss:"], count + 1
    return Held(rss, pss, descriptors, count, seconds)


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def kill(main: int, role: str, draw: random.Random) -> str | None:
    """Ends a random process of this role with SIGKILL; returns what was done, None if there is none."""
    some = [pid for pid, each in all_processes(main).items() if each == role]
    if not some:
        return None
    with suppress(ProcessLookupError):
        os.kill(draw.choice(some), signal.SIGKILL)
    return f"kill {role}"


class Limit:
    """A limit of a process, lowered to little above what it has now, and restored."""

    def __init__(self, pid: int, kind: str) -> None:
        self._pid = pid
        if kind == "descriptors":
            self._limit, now = resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{pid}/fd")) + 6
        else:
            self._limit = resource.RLIMIT_AS
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
            now = pages * resource.getpagesize() + (32 << 20)
        self._before = resource.prlimit(pid, self._limit)
        resource.prlimit(pid, self._limit, (now, self._before[1]))

    def restore(self) -> None:
        with suppress(ProcessLookupError):
            resource.prlimit(self._pid, self._limit, self._before)
