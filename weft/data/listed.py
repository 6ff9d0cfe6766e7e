"""Lists of files: a file name and a text per line, with names relative to the folder of the list."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from weft.data.lines import check_file, file_digest
from weft.data.pair_source import Pairs, combine
from weft.errors import DataError


class ListedPairs(Pairs):
    """Pairs whose sources name files, relative to `folder`. They are made absolute. The digest covers the files as well."""

    def __init__(self, pairs: Pairs, folder: Path) -> None:
        super().__init__(pairs.name)
        self.pairs, self.folder = pairs, folder

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, (name, text) in enumerate(self.pairs, start=1):
            try:
                yield str(check_file(locate(name, self.folder))), text
            except DataError as error:
                raise DataError(f"{self.name}, row {number:,}: {error}") from None

    def digest(self) -> str:
        return combine("listed", self.pairs.digest(), *(file_digest(name) for name, _ in self))


def listed(lines: Iterable[str], file: Path | None) -> Iterator[str]:
    """The names in the first column of a list, relative to the folder of its `file`, or to the current folder."""
    folder = Path.cwd() if file is None else Path(os.path.abspath(file)).parent
    return (locate(line.split("\t")[0], folder) for line in lines if line.strip())


def locate(name: str, folder: Path) -> str:
    """The absolute path of a file that a list in `folder` names; ~ is the home folder."""
    return os.path.abspath(folder / os.path.expanduser(name.strip()))
