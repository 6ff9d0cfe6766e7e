"""Progress on the terminal."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType


class Counter:
    """Shows how many are done and how fast, on standard error if that is a terminal."""

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


class StatusLine:
    """Messages on standard error and, if that is a terminal, a status line below them."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self._text = ""
        self._lock = threading.Lock()

    def __enter__(self) -> StatusLine:
        return self

    def say(self, text: str) -> None:
        """Prints a message. May be called from any thread."""
        with self._lock:
            clear = "\r\033[K" if self.shown else ""
            sys.stderr.write(f"{clear}{text}\n{self._text}")
            sys.stderr.flush()

    def show(self, text: str) -> None:
        """Replaces the status line."""
        if self.shown:
            with self._lock:
                self._text = text[: shutil.get_terminal_size().columns - 1]
                sys.stderr.write(f"\r\033[K{self._text}")
                sys.stderr.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
