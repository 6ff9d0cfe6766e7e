"""A counter on the terminal for work whose end is not known."""

from __future__ import annotations

import sys
import time
from types import TracebackType


class Counter:
    """Shows on standard error, where that is a terminal, how many are done and how fast."""

    def __init__(self, what: str, unit: str, shown: bool = True, total: int | None = None) -> None:
        self.what, self.unit, self.total = what, unit, total
        self.shown = shown and sys.stderr.isatty()
        self.done, self.began, self.written = 0, time.monotonic(), 0.0

    def __enter__(self) -> Counter:
        return self

    def advance(self) -> None:
        self.done += 1
        now = time.monotonic()
        if self.shown and now - self.written > 0.2:
            self.written = now
            self._write(now)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.shown:
            self._write(time.monotonic())
            sys.stderr.write("\n")

    def _write(self, now: float) -> None:
        rate = self.done / max(1e-9, now - self.began)
        text = f"{self.what} {self.done:,}{f' of {self.total:,}' if self.total else ''} {self.unit}, {rate:,.1f}/s"
        if self.total and rate:
            text += f", {(self.total - self.done) / rate:,.0f} s left"
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
