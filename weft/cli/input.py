"""Input of commands: a file, a text on the command line, or standard input line by line as it comes."""

from __future__ import annotations

import os
import re
import select
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.cli.output import tell, warn
from weft.data.text_lines import LONGEST, check_file, read_lines
from weft.errors import DataError
from weft.file_access import NO_FILE, why_unreadable

BLOCK = 1 << 16

PATH = re.compile(r"\S*/\S*|\S+\.[A-Za-z][A-Za-z0-9]{0,4}|.*\.(txt|gz)")
"""A text that looks like the name of a file."""

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


def check_input(text: str | None) -> None:
    """Raises an error if `text` names a file that is missing or cannot be read; it is found before a model is loaded."""
    if text is None or text == "-" or ".zip/" in text:
        return
    if os.path.lexists(text):
        check_file(text)
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
