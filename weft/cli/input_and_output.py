"""Input of commands (a file, a text, or standard input line by line) and their output: files, messages and progress."""

from __future__ import annotations

import gzip
import io
import os
import re
import select
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, cast

import typer
from rich.cells import cell_len, set_cell_size

from weft.data.text_lines import LONGEST, check_file, read_lines
from weft.errors import DataError
from weft.file_access import NO_FILE, same_file, short_name, sole_writer, sync, why_unreadable

BLOCK = 1 << 16

PATH = re.compile(r"\S*/\S*|\S+\.[A-Za-z][A-Za-z0-9]{0,4}|.*\.(txt|gz)")
"""A text that looks like the name of a file."""
CHOSEN = re.compile(r"(.+)#\d+(,\d+)*")
"""A name with columns, as in `--data`."""

Read = Callable[[Path], Iterable[str]]


@dataclass(frozen=True)
class Input:
    """Lines of text, or other inputs.

    file: where they come from, if that is a file · read: how to read it · ready: whether the next line can be read without
    waiting; None: always · prompts: whether somebody types them.
    """

    lines: Iterable[str]
    file: Path | None = None
    ready: Callable[[], bool] | None = None
    prompts: bool = False
    read: Read = read_lines

    def count(self) -> int | None:
        """The number of inputs, if they can be read twice."""
        return sum(1 for _ in self.read(self.file)) if self.file is not None and self.file.is_file() else None


def open_input(text: str | None, read: Read = read_lines, whole: Sequence[str] = ()) -> Input:
    """The inputs of the file `text`; if there is no such file, its own lines; those of standard input if it is None or `-`.

    read: yields the inputs of a file · whole: suffixes of files that are one input each, which is their name.
    """
    if text is None or text == "-":
        return _standard_input()
    if whole and text.lower().endswith(tuple(whole)):
        return Input([text])
    check_input(text)
    if os.path.lexists(text):
        return Input(read(Path(text)), Path(text), read=read)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError("the text on the command line is not valid UTF-8; give it on standard input or in a file")
    if " " not in text and sys.stderr.isatty():  # one word may be meant as the name of a file
        warn("this is read as text, because there is no file of this name; for a file, check the name")
    return Input(text.split("\n"))


def is_raw(text: str | None, lines: bool) -> bool:
    """Whether a file whose name says that it has a structure is to be read as `lines`, as they are."""
    from weft.data.formats import has_file_format

    return lines and has_file_format(text or "")


def check_input(text: str | None) -> None:
    """Raises an error if `text` names a file that is missing or cannot be read; it is found before a model is loaded."""
    if text is None or text == "-" or ".zip/" in text:
        return
    if os.path.lexists(text):
        check_file(text)
    elif (chosen := CHOSEN.fullmatch(text)) and os.path.lexists(chosen[1]):
        cut = f"cut -f{text.rpartition('#')[2]} {chosen[1]}"
        raise DataError(f"{text}: inputs are whole lines, and columns are chosen in --data only. Give them alone: {cut}")
    elif PATH.fullmatch(text):
        if why_unreadable(Path(text)) != NO_FILE:
            check_file(text)  # raises an error that says who may not enter which folder
        raise DataError(
            f"{text}: there is no such file (looked for it in {Path(text).absolute().parent}). If this is a text and no file "
            "name, give it on standard input"
        )


def _standard_input() -> Input:
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # not a stream of the system
        return Input(read_lines(sys.stdin.buffer, "standard input"))
    prompts = sys.stdin.isatty() and sys.stderr.isatty()
    lines = LiveLines(descriptor, "> " if prompts else "")
    if prompts:
        tell("Type a line and press Enter. Ctrl-D ends.")
    return Input(read_lines(lines, "standard input"), ready=lines.ready, prompts=prompts)


class LiveLines:
    """The lines of an open file, pipe or terminal. Unlike those of a Python stream, they can be read without waiting."""

    def __init__(self, descriptor: int, prompt: str = "") -> None:
        self.descriptor, self.prompt = descriptor, prompt
        self._lines: deque[bytes] = deque()
        self._rest: list[bytes] = []
        self._ended = False

    def __iter__(self) -> LiveLines:
        return self

    def __next__(self) -> bytes:
        if not self.ready():
            self._say(self.prompt)
            try:
                while not (self._lines or self._ended):
                    self._read(None)
            except KeyboardInterrupt:
                self._say("\n" if self.prompt else "")
                raise
            if self._ended and not self._lines:
                self._say("\n" if self.prompt else "")
        if not self._lines:
            raise StopIteration
        return self._lines.popleft()

    def ready(self) -> bool:
        """Whether the next line, or the end, can be read without waiting."""
        while not (self._lines or self._ended) and self._read(0.0):
            pass
        return bool(self._lines) or self._ended

    def _read(self, wait: float | None) -> bool:
        """Reads a block. Returns whether one came within `wait` seconds; None waits forever."""
        if not select.select([self.descriptor], [], [], wait)[0]:
            return False
        block = os.read(self.descriptor, BLOCK)
        first, *others = block.split(b"\n")
        self._rest.append(first)
        if others:
            self._lines += [b"".join([*self._rest, b"\n"]), *(line + b"\n" for line in others[:-1])]
            self._rest = [others[-1]]
        self._ended = not block
        if self._ended or sum(map(len, self._rest)) > LONGEST:  # a line that is too long is refused where it is decoded
            self._lines += filter(None, [b"".join(self._rest)])
            self._rest = []
        return True

    def _say(self, text: str) -> None:
        if text:
            sys.stderr.write(text)
            sys.stderr.flush()


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
    part = output.with_name(f"{short_name(output)}.part")
    written = 0
    with sole_writer(part, output):
        try:
            with _open(part, output.suffix == ".gz") as file:
                try:
                    yield file
                finally:
                    file.flush()
                    written = file.tell()
            if output.exists():
                shutil.copymode(output, part)
            sync(part)
            os.replace(part, output)
            sync(output.parent)
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

    def expect(self, total: int) -> None:
        self.total = total

    def advance(self, count: int = 1) -> None:
        self.done += count
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
