"""Formats of data files: how a task opens its data, reads a file of inputs, and notices that a file is of another kind.

A header row that would be read as a pair, and a column of ids that would be read as text, are recognised by what they contain,
so a real pair may look like one. Data is refused only if its columns were not chosen; choosing them, as in x.tsv#1,2, always
helps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path

from weft.data.file_lists import open_listed, read_listed
from weft.data.formats import Pairs, TablePairs, TextPairs, is_json, open_pairs, read_sources
from weft.data.text_lines import read_lines
from weft.errors import DataError

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

ID = re.compile(r"[A-Za-z]{0,12}[-_:.#/]?\d+([-_:.]\d+)*|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-f]{16,}")


def read_inputs(file: Path) -> Iterable[str]:
    """The lines of a file, or the texts in its JSON lines."""
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
    source, target = (int(column) - 1 for column in pairs.chosen or ("1", "2"))
    if max(source, target) >= width or any(len(row) != width for row in rows):
        return  # reading the data says what is wrong
    header = _header([rows[0][source], rows[0][target]]) and not _recurs(rows, (source, target))
    names = [cell.strip() for cell in rows[0]]
    if any(_ids([row[place] for row in rows[header:]]) for place in (source, target)):
        advice = f"{pairs.path}#{names[-2]},{names[-1]}" if header else f"{pairs.path}#2,3"
        _refuse_or_warn(
            f"{pairs.path}: a column seems to hold ids, not text: {_quote(rows[-1])}", advice, pairs, report, width > 2
        )
    elif header or _odd([[row[source], row[target]] for row in rows]):
        advice = f"{pairs.path}#{names[source]},{names[target]}"
        _refuse_or_warn(
            f"{pairs.path}: its first row, {_quote(rows[0])}, looks like a header, not a pair", advice, pairs, report, header
        )


@dataclass(frozen=True)
class DataFormat:
    """How the data of a task is written; by default, pairs of texts.

    open: the data that a setting or --data names, as pairs of an input and its reference
    inputs: the inputs in a file
    check: raises DataError if pairs are obviously not what the task needs; reports if they may not be
    suffixes: those of files that are one input each, such as .jpg, for tasks that read files instead of texts
    """

    open: Callable[[str], Pairs] = open_pairs
    inputs: Callable[[Path], Iterable[str]] = read_inputs
    check: Callable[[Pairs, Callable[[str], None]], None] = check_columns
    suffixes: Sequence[str] = ()


def listed_files(suffixes: Sequence[str], *, lowercase: bool = False) -> DataFormat:
    """Lists of files with a text for each, such as pictures with captions."""
    return DataFormat(partial(open_listed, lowercase=lowercase), read_listed, accept_all, suffixes)


def _refuse_or_warn(text: str, advice: str, pairs: TablePairs, report: Callable[[str], None], certain: bool) -> None:
    if certain and pairs.chosen is None:
        raise DataError(f"{text}. Write {advice}, or {pairs.path}#1,2 to train on it as it is.")
    report(f"warning: {text}. If it is so, write {advice}")


def _header(cells: list[str]) -> bool:
    """Whether these cells, all different, are names of columns in one language."""
    if len(set(cells)) != len(cells) or not all(_words(cell) for cell in cells):
        return False
    words = {word for cell in cells for word in _words(cell)}
    return all(map(_heading, cells)) or any(words <= _other_headings(code) for code in OTHER_HEADINGS)


def _recurs(rows: list[list[str]], places: tuple[int, int]) -> bool:
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
    from babel import Locale

    names = {str(code).lower(): str(name).lower() for code, name in Locale("en").languages.items()}
    return frozenset({*(code for code in names if len(code) <= 3), *names.values()})


@cache
def _other_headings(code: str) -> frozenset[str]:
    """Names of columns in another language than English, such as Englisch and Deutsch."""
    from babel import Locale

    names = Locale(code).languages
    return frozenset(
        {*OTHER_HEADINGS[code].split(), *(str(names.get(other, other)).lower() for other in ("en", *OTHER_HEADINGS))}
    )


def _quote(cells: list[str] | tuple[str, ...]) -> str:
    return ", ".join(repr(cell[:40]) for cell in islice(cells, 4))
