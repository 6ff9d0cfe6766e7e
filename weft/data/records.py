"""JSON objects, one per line, and the texts in them.

A text is a string or a number. A document may be a list of sentences, and have a list of labels; both become lines of one text.
Only the keys `source` and `target`, which name single texts, have no lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from weft.data.lines import read_lines
from weft.errors import DataError

SOURCES, TARGETS = ("source", "sentences", "text"), ("target", "label", "labels")
"""The keys that are looked for if nobody chose them, the first ones first."""


def is_json(path: str | Path) -> bool:
    """Whether a file has JSON lines, by its name."""
    return str(path).removesuffix(".gz").endswith(".jsonl")


def read_records(path: str | Path) -> Iterator[tuple[Any, str]]:
    """The value of each line that is not blank, and where it is."""
    empty = True
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            empty, where = False, f"{path}, line {number:,}"
            try:
                yield json.loads(line), where
            except ValueError as error:
                raise DataError(f"{where}: not valid JSON ({error}): {line[:80]!r}.") from None
    if empty:
        raise DataError(f"{path} is empty.")


def read_sources(path: str | Path) -> Iterator[str]:
    """The source of each record of a file."""
    return (text_at(record, find_key(record, SOURCES), where) for record, where in read_records(path))


def find_key(record: Any, names: Sequence[str]) -> str:
    """The first of the names that a record has; the first of all if it has none."""
    return next((name for name in names if isinstance(record, dict) and name in record), names[0])


def text_at(record: Any, key: str, where: str) -> str:
    """The text at `key` of a record; dots in the key lead into nested records."""
    value = record
    for step in [key] if isinstance(record, dict) and key in record else key.split("."):
        if not isinstance(value, dict) or step not in value:
            present = ", ".join(map(repr, value)) if isinstance(value, dict) else f"a {type(value).__name__}"
            missing = " or ".join(map(repr, {SOURCES[0]: SOURCES, TARGETS[0]: TARGETS}.get(key, (key,))))
            raise DataError(
                f"{where}: there is no {missing}; found {present or 'nothing'}. Choose keys like pairs.jsonl#en,de."
            )
        value = value[step]
    if isinstance(value, list) and key not in (SOURCES[0], TARGETS[0]):
        return join_sentences([_plain(each, f"{key}[{place}]", where) for place, each in enumerate(value)])
    return _plain(value, key, where)


def join_sentences(sentences: Sequence[str]) -> str:
    """The sentences of a document as one text, each as a line. White space inside a sentence becomes spaces."""
    return "".join(f"{' '.join(sentence.split())}\n" for sentence in sentences)


def _plain(value: Any, key: str, where: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # labels are often numbers
    if not isinstance(value, str):
        raise DataError(f"{where}: {key!r} must be text, not {value!r}.")
    return value
