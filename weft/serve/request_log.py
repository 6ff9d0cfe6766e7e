"""The log: one JSON object per line on standard error, written by a thread of its own."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

Log = Callable[[dict[str, Any]], None]

WAITING = 10_000
"""Lines that may wait for a reader of standard error that is slow; further ones are dropped and counted."""


class LogWriter:
    """Writes lines in the background, so that a blocked standard error never holds up a request."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or _write
        self._lines: queue.Queue[str | None] = queue.Queue(WAITING)
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def __call__(self, facts: dict[str, Any]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="weft-log", daemon=True)
                self._thread.start()
        line = json.dumps(facts, ensure_ascii=True, default=str)
        try:
            if self._dropped:
                self._lines.put_nowait(json.dumps({"event": "log lines dropped", "lines": self._dropped}))
                self._dropped = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self, seconds: float = 2.0) -> None:
        """Writes the waiting lines; gives up after some seconds."""
        if self._thread is not None:
            try:
                self._lines.put(None, timeout=seconds)
            except queue.Full:
                return
            self._thread.join(seconds)
            self._thread = None

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)


def _write(line: str) -> None:
    """Writes past Python's buffer: a thread that is blocked in it would keep the process from ending."""
    try:
        number = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        sys.stderr.write(f"{line}\n")
        return
    left = f"{line}\n".encode()
    while left:
        left = left[os.write(number, left) :]


log_line = LogWriter()
