"""Where commands write."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def opened(output: Path | None) -> Iterator[IO[str]]:
    """The file `output` for writing, or standard output; what fails in writing is said with the name of the two."""
    try:
        if output is None:
            yield sys.stdout
        else:
            with open(output, "w", encoding="utf-8") as file:
                yield file
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(output or "standard output")) from None


def write_line(target: IO[str], line: str) -> None:
    """Written at once: whoever waits at the other end of a pipe, or looks at the file, sees each line as it is done."""
    target.write(line + "\n")
    target.flush()
