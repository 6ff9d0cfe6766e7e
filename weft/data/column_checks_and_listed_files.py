"""Formats of data files: how a task opens its data, reads a file of inputs, and notices that a file is of another kind.

A header row that would be read as a pair, and a column of ids that would be read as text, are recognised by what they contain,
so a real pair may look like one. Data is refused only if its columns were not chosen; choosing them, as in x.tsv#1,2, always
helps.

Lists of files, each with a text:

    recordings.tsv             a file, a tab and a text per line; files are relative to the folder of the list
    photos.zip,captions.tsv    the files are in a .zip file, or in another folder

A path may lead into a .zip file: photos.zip/dog.jpg.
"""

import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import IO, Literal

from weft.data.compression_and_encodings import ZIP_ERRORS
from weft.data.formats import (
    Pairs,
    TablePairs,
    TextPairs,
    combine,
    has_file_format,
    is_json,
    open_pairs,
    read_file_sources,
    read_sources,
)
from weft.data.language_names import language_names
from weft.data.text_lines import check_file, file_digest, read_lines
from weft.errors import DataError
from weft.file_access import plain_name

ROWS = 50
"""Rows that are checked."""

FEWEST = 5
"""With fewer rows, nothing is concluded about a column."""

HEADINGS = re.compile(
    "answer|article|category|class|completion|context|correct|document|grapheme|id|index|inputs?|item|key|labels?|lang|language|"
    "line|no|number|original|outputs?|paragraph|phoneme|phrase|premise|prompt|question|query|raw|ref|reference|response|review|"
    "segment|sentences?|sentiment|sources?|src|string|summary|tag|targets?|term|texts?|tgt|title|topic|translated|translation|"
    "trg|utterance|value|word"
)
"""Words of which the names of columns are made, besides languages."""

OTHER_HEADINGS = {
    "de": "antwort ausgangstext begriff frage quelle quelltext satz text übersetzung wort ziel zieltext",
    "es": "destino frase origen texto traducción",
    "fr": "cible phrase question réponse source texte traduction",
    "it": "fonte frase origine testo traduzione",
    "nl": "brontekst doel tekst vertaling zin",
    "pl": "tekst tłumaczenie zdanie źródło",
    "pt": "destino frase origem texto tradução",
} | dict.fromkeys(
    ("cs", "da", "el", "et", "fi", "hr", "hu", "ja", "ko", "lt", "lv", "nb", "ro", "ru", "sk", "sl", "sv", "tr", "uk", "zh"), ""
)
"""Such words in other languages, whose names for languages are known as well."""

Side = Literal[0, 1]
"""A column of a list."""

ID = re.compile(r"[A-Za-z]{0,12}[-_:.#/]?\d+([-_:.]\d+)*|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-f]{16,}")


def read_inputs(file: Path) -> Iterable[str]:
    """The lines of a file, the texts in its JSON lines, or the sources in a file such as .tmx or .xlsx."""
    if has_file_format(file):
        return read_file_sources(str(file))
    return read_sources(file) if is_json(file) else read_lines(file)


def accept_all(pairs: Pairs, report: Callable[[str], None]) -> None:
    """Checks nothing, for data that has no columns."""


def check_columns(pairs: Pairs, report: Callable[[str], None]) -> None:
    """Raises DataError if the first row is a header or a column holds ids, and the columns were not chosen; otherwise warns."""
    if isinstance(pairs, TextPairs):
        first = next(iter(pairs))
        if _header(list(first)):
            report(f"warning: the first lines of {pairs.name}, {_quote(first)}, look like headings; if they are, remove them")
    if not isinstance(pairs, TablePairs):
        return
    rows = pairs.head(ROWS)
    width = len(rows[0]) if rows else 0
    if width < 2 or pairs.headed(rows[0]):
        return
    places, count = pairs.numbers, len(pairs.fields)
    if max(places) >= width or any(len(row) != width for row in rows):
        return  # reading the data says what is wrong
    header = _header([rows[0][place] for place in places]) and not _recurs(rows, places)
    names = [cell.strip() for cell in rows[0]]
    texts = places if count == 2 else places[:-1]
    if any(_ids([row[place] for row in rows[header:]]) for place in texts):
        columns = names[-count:] if header else [str(place + 2) for place in range(count)]
        advice = f"{pairs.path}#{','.join(columns)}"
        _refuse_or_warn(
            f"{pairs.path}: a column seems to hold ids, not text: {_quote(rows[-1])}", advice, pairs, report, width > count
        )
    elif header or (count == 2 and _odd([[row[place] for place in places] for row in rows])):
        advice = f"{pairs.path}#{','.join(names[place] for place in places)}"
        _refuse_or_warn(
            f"{pairs.path}: its first row, {_quote(rows[0])}, looks like a header, not a pair", advice, pairs, report, header
        )


@dataclass(frozen=True)
class DataFormat:
    """The format of the data of a task; by default, pairs of texts.

    open: the data that a setting or --data names, as pairs of an input and its reference
    inputs: the inputs in a file
    check: raises DataError if pairs are obviously not what the task needs; reports if they may not be
    suffixes: those of files that are one input each, such as .jpg, for tasks that read files instead of texts
    """

    open: Callable[[str], Pairs] = open_pairs
    inputs: Callable[[Path], Iterable[str]] = read_inputs
    check: Callable[[Pairs, Callable[[str], None]], None] = check_columns
    suffixes: Sequence[str] = ()


def listed_files(suffixes: Sequence[str], *, lowercase: bool = False, side: Side = 0) -> DataFormat:
    """Lists of files with a text for each, such as pictures with captions. side: 0 if files are inputs, 1 if texts are."""
    return DataFormat(
        partial(open_listed, lowercase=lowercase, side=side), read_inputs if side else read_listed, accept_all, suffixes
    )


def _refuse_or_warn(text: str, advice: str, pairs: TablePairs, report: Callable[[str], None], certain: bool) -> None:
    if certain and pairs.chosen is None:
        first = ",".join(str(place + 1) for place in range(len(pairs.fields)))
        raise DataError(f"{text}. Write {advice}, or {pairs.path}#{first} to train on it as it is.")
    report(f"warning: {text}. If it is so, write {advice}")


def _header(cells: list[str]) -> bool:
    """Whether these cells, all different, are names of columns in one language."""
    if len(set(cells)) != len(cells) or not all(_words(cell) for cell in cells):
        return False
    words = {word for cell in cells for word in _words(cell)}
    return all(map(_heading, cells)) or any(words <= _other_headings(code) for code in OTHER_HEADINGS)


def _recurs(rows: list[list[str]], places: Sequence[int]) -> bool:
    """Whether a cell of the first row occurs again in its column, as a label may and the name of a column hardly does."""
    return any(rows[0][place] in [row[place] for row in rows[1:]] for place in places)


def _words(cell: str) -> list[str]:
    """The words of a cell that may name a column; none if it is too long for that."""
    words = [word for word in re.split(r"[\W_\d]+", cell.strip().lower()) if word]
    return words if len(words) <= 3 and len(cell) <= 40 else []


def _heading(cell: str) -> bool:
    words = _words(cell)
    return bool(words) and all(HEADINGS.fullmatch(word) or word in _languages() for word in words)


def _odd(rows: list[list[str]]) -> bool:
    """Whether the first row has two single words, one of them a heading, and most others are sentences."""
    first, *others = [[len(cell.split()) for cell in row] for row in rows]
    long = sum(min(row) > 2 for row in others)
    return first == [1, 1] and any(len(cell) > 3 and _heading(cell) for cell in rows[0]) and long > len(others) // 2


def _ids(cells: list[str]) -> bool:
    """Whether a column holds ids: at least a few, all different, all of the form of an id."""
    return len(cells) >= FEWEST and len(set(cells)) == len(cells) and all(ID.fullmatch(cell.strip()) for cell in cells)


@cache
def _languages() -> frozenset[str]:
    """The codes and English names of languages."""
    names = {code.lower(): name.lower() for code, name in language_names().items()}
    return frozenset({*(code for code in names if len(code) <= 3), *names.values()})


@cache
def _other_headings(code: str) -> frozenset[str]:
    """Names of columns in another language than English, such as Englisch and Deutsch."""
    names = language_names(code)
    return frozenset({*OTHER_HEADINGS[code].split(), *(names.get(other, other).lower() for other in ("en", *OTHER_HEADINGS))})


def _quote(cells: list[str] | tuple[str, ...]) -> str:
    return ", ".join(repr(cell[:40]) for cell in islice(cells, 4))


SUFFIXES = (".tsv", ".csv", ".jsonl")


class ListedPairs(Pairs):
    """The lines of a list: (absolute path of a file, text), or the other way round.

    lowercase: texts are made lower case · side: which of the two is the file.
    """

    def __init__(self, name: str, pairs: Pairs, folder: Path, *, lowercase: bool = False, side: Side = 0) -> None:
        super().__init__(name)
        self.pairs, self.folder, self.lowercase, self.side = pairs, folder, lowercase, side
        self.line_files = pairs.line_files

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for pair in self.pairs:
            file, text = locate(pair[self.side], self.folder), pair[1 - self.side]
            text = text.lower() if self.lowercase else text
            yield (text, file) if self.side else (file, text)

    def digest(self) -> str:
        """Covers the files as well. Raises DataError with the row of one that is missing."""
        digests: dict[str, str] = {}
        for number, pair in enumerate(self, start=1):
            path = pair[self.side]
            try:
                digests[path] = digests.get(path) or content_digest(path)
            except DataError as error:
                raise DataError(f"{self.name}, row {number:,}: {error}") from None
        return combine("listed", str(self.lowercase), self.pairs.digest(), *digests.values())


def open_listed(spec: str, *, lowercase: bool = False, side: Side = 0) -> ListedPairs:
    """Opens the list of files that `spec` names (see the top of this file)."""
    place, comma, rest = spec.partition(",")
    path = spec.partition("#")[0]
    if plain_name(path).endswith(SUFFIXES) and Path(path).exists():
        return ListedPairs(spec, open_pairs(spec), Path(path).absolute().parent, lowercase=lowercase, side=side)
    if not comma:
        columns = "a text, a tab and a file" if side else "a file, a tab and a text"
        raise DataError(
            f"{spec!r} is no list of files. Give a file .tsv with {columns} per line, or photos.zip,list.tsv if the files are "
            "in a .zip file or in another folder"
        )
    folder = Path(place.strip())
    if not folder.is_dir():
        check_file(folder)
    return ListedPairs(spec, open_pairs(rest.strip()), folder.absolute(), lowercase=lowercase, side=side)


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
    except (zipfile.BadZipFile, RuntimeError, zlib.error, lzma.LZMAError, struct.error) as error:
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
            except ZIP_ERRORS as error:
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
