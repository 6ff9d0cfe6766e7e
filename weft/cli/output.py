"""Output: files, messages and progress."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

import typer


@contextmanager
def opened(output: Path | None) -> Iterator[IO[str]]:
    """The file `output` for writing, or standard output. Errors name the file that could not be written."""
    try:
        if output is None:
            yield sys.stdout
        else:
            with open(output, "w", encoding="utf-8") as file:
                yield file
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(output or "standard output")) from None


def write_line(target: IO[str], line: str) -> None:
    """Writes a line at once, so that a pipe or a file shows each line as soon as it is done."""
    target.write(line + "\n")
    target.flush()


def tell(message: str) -> None:
    """Writes a message to standard error. Unlike rich, it wraps no line, so commands in it can be copied."""
    typer.echo(message, err=True)


def warn(message: str) -> None:
    """Writes a warning to standard error."""
    tell(f"weft: {message}")


class StatusLine:
    """Messages on standard error and, if that is a terminal, a status line below them."""

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown and sys.stderr.isatty()
        self._text = ""
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
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

    def __exit__(self, *error: object) -> None:
        self.show("")


class Counter(StatusLine):
    """A status line with the number of items done and their rate. Its last state stays on the terminal."""

    def __init__(self, what: str, unit: str, shown: bool = True, total: int | None = None) -> None:
        super().__init__(shown)
        self.what, self.unit, self.total = what, unit, total
        self.done, self.began, self.written = 0, time.monotonic(), 0.0

    def advance(self) -> None:
        self.done += 1
        if time.monotonic() - self.written > 0.2:
            self._update()

    def __exit__(self, *error: object) -> None:
        self._update()
        if self.shown:
            sys.stderr.write("\n")

    def _update(self) -> None:
        self.written = time.monotonic()
        rate = self.done / max(1e-9, self.written - self.began)
        text = f"{self.what} {self.done:,}{f' of {self.total:,}' if self.total else ''} {self.unit}, {rate:,.1f}/s"
        if self.total and rate:
            text += f", {(self.total - self.done) / rate:,.0f} s left"
        self.show(text)
