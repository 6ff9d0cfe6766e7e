"""Output files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


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
