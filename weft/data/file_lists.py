"""Lists of files, each with a text:

    recordings.tsv             a file, a tab and a text per line; files are relative to the folder of the list
    photos.zip,captions.tsv    the files are in a .zip file, or in another folder

A path may lead into a .zip file: photos.zip/dog.jpg.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO

from weft.data.formats import Pairs, combine, open_pairs
from weft.data.text_lines import check_file, file_digest, read_lines
from weft.errors import DataError

SUFFIXES = (".tsv", ".csv", ".jsonl")


class ListedPairs(Pairs):
    """The lines of a list: (absolute path of a file, text). lowercase: texts are made lower case."""

    def __init__(self, name: str, pairs: Pairs, folder: Path, *, lowercase: bool = False) -> None:
        super().__init__(name)
        self.pairs, self.folder, self.lowercase = pairs, folder, lowercase

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for file, text in self.pairs:
            yield locate(file, self.folder), text.lower() if self.lowercase else text

    def digest(self) -> str:
        """Covers the files as well. Raises DataError with the row of one that is missing."""
        digests: dict[str, str] = {}
        for number, (path, _) in enumerate(self, start=1):
            try:
                digests[path] = digests.get(path) or content_digest(path)
            except DataError as error:
                raise DataError(f"{self.name}, row {number:,}: {error}") from None
        return combine("listed", str(self.lowercase), self.pairs.digest(), *digests.values())


def open_listed(spec: str, *, lowercase: bool = False) -> ListedPairs:
    """Opens the list of files that `spec` names (see the top of this file)."""
    place, comma, rest = spec.partition(",")
    path = spec.partition("#")[0]
    if path.removesuffix(".gz").endswith(SUFFIXES) and Path(path).exists():
        return ListedPairs(spec, open_pairs(spec), Path(path).absolute().parent, lowercase=lowercase)
    if not comma:
        raise DataError(
            f"{spec!r} is no list of files. Give a file .tsv with a file, a tab and a text per line, or photos.zip,list.tsv if "
            "the files are in a .zip file or in another folder"
        )
    folder = Path(place.strip())
    if not folder.is_dir():
        check_file(folder)
    return ListedPairs(spec, open_pairs(rest.strip()), folder.absolute(), lowercase=lowercase)


def read_listed(file: Path) -> Iterator[str]:
    """The paths in the first column of a list."""
    folder = Path(os.path.abspath(file)).parent
    return (locate(line.split("\t")[0], folder) for line in read_lines(file) if line.strip())


def locate(name: str, folder: Path) -> str:
    """The absolute path of a file that a list in `folder` names; ~ is the home folder."""
    return os.path.abspath(folder / os.path.expanduser(name.strip()))


@contextmanager
def open_file(path: str) -> Iterator[IO[bytes]]:
    """A file, or a file inside a .zip file. Raises DataError if there is none."""
    archive, inside = _archive_of(path)
    try:
        if archive is None:
            with check_file(path).open("rb") as file:
                yield file
        else:
            with archive.open(_entry(archive, inside, path)) as file:
                yield file
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise DataError(f"{path}: the file cannot be read: {error}") from None


def content_digest(path: str) -> str:
    """A hash of the contents of a file. Inside a .zip, its size and check sum are enough."""
    archive, inside = _archive_of(path)
    if archive is None:
        return file_digest(path)
    entry = _entry(archive, inside, path)
    return f"{entry.CRC}:{entry.file_size}"


def _archive_of(path: str) -> tuple[zipfile.ZipFile | None, str]:
    """The .zip file that a path leads into, and the name inside; None for a plain file."""
    for parent in Path(path).parents:
        if parent.suffix.lower() == ".zip" and parent.is_file():
            try:
                return _opened(str(parent), parent.stat().st_mtime_ns), Path(path).relative_to(parent).as_posix()
            except (OSError, zipfile.BadZipFile) as error:
                raise DataError(f"{parent}: the .zip file cannot be read: {error}") from None
    return None, path


@lru_cache(maxsize=8)
def _opened(path: str, changed: int) -> zipfile.ZipFile:
    """An open .zip file; `changed` makes a new entry if the file changes."""
    return zipfile.ZipFile(path)


def _entry(archive: zipfile.ZipFile, inside: str, path: str) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(inside)
    except KeyError:
        raise DataError(f"{path}: there is no {inside} in {archive.filename}") from None
