"""Output: files, messages and progress."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self, cast

import typer
from rich.cells import cell_len, set_cell_size

from weft.errors import DataError
from weft.file_access import same_file


def check_kept(output: Path | None, *inputs: Path) -> None:
    """Raises DataError if the output is one of the inputs, which opening it for writing would empty."""
    if output is not None and any(same_file(path, output) for path in inputs):
        raise DataError(f"{output}: would be overwritten while it is read; choose another file for the output")


@contextmanager
def opened(output: Path | None) -> Iterator[IO[str]]:
    """The file `output` for writing, compressed if its name ends in .gz, or standard output.

    The file gets its name when it is complete. If writing fails, an earlier file of that name stays as it is, and what was
    written is kept in NAME.part. Errors name the file that could not be written.
    """
    try:
        if output is None:
            yield sys.stdout
        elif output.exists() and not output.is_file():  # a device or a pipe
            with _open(output, output.suffix == ".gz") as file:
                yield file
        else:
            with _replacing(Path(os.path.realpath(output))) as file:
                yield file
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(output or "standard output")) from None


@contextmanager
def _replacing(output: Path) -> Iterator[IO[str]]:
    part = output.with_name(f"{output.name}.part")
    written = 0
    try:
        with _open(part, output.suffix == ".gz") as file:
            try:
                yield file
            finally:
                file.flush()
                written = file.tell()
        if output.exists():
            shutil.copymode(output, part)
        os.replace(part, output)
    except BaseException:
        if written:
            warn(f"{output} is incomplete; what was written is in {part}")
        else:
            part.unlink(missing_ok=True)
        raise


def _open(file: Path, compressed: bool) -> IO[str]:
    if not compressed:
        return open(file, "w", encoding="utf-8")
    return io.TextIOWrapper(cast(IO[bytes], _Gzip(file, "wb", mtime=0)), encoding="utf-8")


class _Gzip(gzip.GzipFile):
    """A compressed file that ignores `flush`, because compressing each line separately would double its size."""

    def flush(self, zlib_mode: int = 0) -> None:
        pass


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
                width = shutil.get_terminal_size().columns - 1
                self._text = text if cell_len(text) <= width else set_cell_size(text, width).rstrip()
                sys.stderr.write(f"\r\033[K{self._text}")
                sys.stderr.flush()

    def __exit__(self, *error: object) -> None:
        self.show("")


class Counter(StatusLine):
    """A status line with the number of items done, their rate and the time left. Its last state stays on the terminal."""

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
        from weft.training.log_text import duration

        self.written = time.monotonic()
        seconds = max(1e-9, self.written - self.began)
        rate = self.done / seconds
        text = f"{self.what} {self.done:,}{f' of {self.total:,}' if self.total else ''} {self.unit} · {rate:,.1f} {self.unit}/s"
        if self.total and rate and self.done < self.total:
            text += f" · {duration((self.total - self.done) / rate)} left"
        else:
            text += f" · {duration(seconds)}"
        self.show(text)
