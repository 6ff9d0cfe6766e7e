"""Pairs of texts out of files, named by one short string.

    a.en,a.de                     two text files, line by line
    pairs.tsv   pairs.tsv#3,1     columns between tabs, the first two or those of the given numbers
    pairs.jsonl pairs.jsonl#en,de one JSON object a line, the keys `source` and `target` or those given (a.b: b inside a)
    …each also as .gz
    hf:NAME[:CONFIG][@SPLIT]#SOURCE,TARGET         a Hugging Face dataset (needs `pip install weft[datasets]`)
    generated:dates?count=20000&seed=1&split=test  one of the tasks of `weft.data.generated`

Everything is read one line at a time, as often as asked.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from weft.data.generated import Generated, parse_generated
from weft.data.lines import check_file, file_digest, read_lines
from weft.data.mismatch import explain_mismatch
from weft.errors import DataError

__all__ = ["Pairs", "open_pairs", "read_lines"]

FORMS = "'a.en,a.de', 'pairs.tsv', 'pairs.jsonl' (each also .gz), 'hf:NAME#SOURCE,TARGET' or 'generated:dates?count=1000'"

KEPT = 50_000
"""The most generated pairs that are kept in memory: long ones take a while to make, and training reads them several times."""


class Pairs(ABC):
    """Pairs (source, target) of texts that can be read any number of times, in constant memory."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, str]]: ...

    @abstractmethod
    def digest(self) -> str:
        """A hash of everything that iterating depends on."""


def open_pairs(spec: str) -> Pairs:
    """The pairs that `spec` names (see the top of this file). What is wrong with a name or a file's presence is said here,
    what is wrong inside a file when it is read."""
    if spec.startswith("generated:"):
        return GeneratedPairs(spec)
    if spec.startswith("hf:"):
        return HuggingFacePairs(spec)
    path, columns = _columns(spec)
    kind = Path(path.removesuffix(".gz")).suffix
    if kind == ".tsv" and "," not in path:
        return TsvPairs(spec, path, columns)
    if kind == ".jsonl" and "," not in path:
        return JsonPairs(spec, path, columns)
    if spec.count(",") == 1 and all(part.strip() for part in spec.split(",")):
        source, target = spec.split(",")
        return TextPairs(spec, source.strip(), target.strip())
    raise DataError(f"{spec!r} does not say where the pairs are. Write {FORMS}.")


def _columns(spec: str) -> tuple[str, tuple[str, str] | None]:
    """`path#source,target` in its two parts. A path may itself hold a '#': only one that two names follow counts."""
    path, mark, names = spec.rpartition("#")
    if not mark or names.count(",") != 1 or not path.removesuffix(".gz").endswith((".tsv", ".jsonl")):
        return spec, None
    source, target = (name.strip() for name in names.split(","))
    return path, (source, target)


class TextPairs(Pairs):
    """Two text files; line n of one belongs to line n of the other."""

    def __init__(self, name: str, source: str, target: str) -> None:
        super().__init__(name)
        self.source, self.target = source, target
        for path in (source, target):
            check_file(path)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        found = False
        for source, target in zip_longest(read_lines(self.source), read_lines(self.target)):
            if source is None or target is None:
                empty = self.source if source is None else self.target
                raise DataError(explain_mismatch(self.source, self.target) if found else f"{empty} is empty.")
            found = True
            yield source, target
        if not found:
            raise DataError(f"{self.source} and {self.target} are empty.")

    def digest(self) -> str:
        return _combine("text", file_digest(self.source), file_digest(self.target))


class TsvPairs(Pairs):
    """One file with a pair a line, tabs between its columns. Blank lines are passed over.

    Every line must have as many columns as the first: a stray tab inside a text would otherwise cut it in silence.
    """

    def __init__(self, name: str, path: str, columns: tuple[str, str] | None) -> None:
        super().__init__(name)
        self.path = str(check_file(path))
        self.columns = [self._number(column) for column in columns or ("1", "2")]

    def _number(self, column: str) -> int:
        if not column.isdecimal() or int(column) < 1:
            raise DataError(f"{self.name}: columns of a .tsv are given by number, counted from 1, not {column!r}.")
        return int(column) - 1

    def __iter__(self) -> Iterator[tuple[str, str]]:
        source, target = self.columns
        width = 0
        for number, line in enumerate(read_lines(self.path), start=1):
            if not line:
                continue
            cells = line.split("\t")
            if len(cells) != width:
                self._check(number, line, len(cells), width)
                width = len(cells)
            yield cells[source], cells[target]
        if not width:
            raise DataError(f"{self.path} is empty.")

    def _check(self, number: int, line: str, width: int, expected: int) -> None:
        where = f"{self.path}, line {number:,}"
        if expected:
            raise DataError(
                f"{where}: {width} columns, where the lines before it have {expected}: {line[:80]!r}. "
                "Look for a missing tab, or a tab inside a text."
            )
        if max(self.columns) >= width:
            raise DataError(
                f"{where}: there is no column {max(self.columns) + 1}, only {width}: {line[:80]!r}. Columns are parted by tabs."
            )

    def digest(self) -> str:
        return _combine("tsv", *map(str, self.columns), file_digest(self.path))


class JsonPairs(Pairs):
    """One JSON object a line. Blank lines are passed over."""

    def __init__(self, name: str, path: str, columns: tuple[str, str] | None) -> None:
        super().__init__(name)
        self.path = str(check_file(path))
        self.keys = columns or ("source", "target")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        source, target = self.keys
        found = False
        for number, line in enumerate(read_lines(self.path), start=1):
            if not line.strip():
                continue
            where = f"{self.path}, line {number:,}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise DataError(f"{where}: not valid JSON ({error}): {line[:80]!r}.") from None
            found = True
            yield _text(record, source, where), _text(record, target, where)
        if not found:
            raise DataError(f"{self.path} is empty.")

    def digest(self) -> str:
        return _combine("json", *self.keys, file_digest(self.path))


class HuggingFacePairs(Pairs):
    """Two columns of a dataset of the Hugging Face hub, or of a local folder that `datasets` can load."""

    def __init__(self, spec: str) -> None:
        super().__init__(spec)
        place, _, columns = spec.removeprefix("hf:").partition("#")
        place, _, self.split = place.partition("@")
        self.dataset, _, self.config = place.partition(":")
        source, _, target = columns.partition(",")
        self.columns = (source.strip(), target.strip())
        if not self.dataset or not all(self.columns):
            raise DataError(
                f"{spec!r}: write hf:NAME[:CONFIG][@SPLIT]#SOURCE,TARGET, for example hf:bentrevett/multi30k@train#en,de."
            )
        self._loaded: Any = None

    def _load(self) -> Any:
        if self._loaded is None:
            try:
                import datasets
            except ImportError:
                raise DataError(f"{self.name} needs a package that is not installed: pip install 'weft[datasets]'.") from None
            try:
                self._loaded = datasets.load_dataset(self.dataset, self.config or None, split=self.split or "train")
            except Exception as error:  # whatever a dataset's own loader may raise
                raise DataError(f"{self.name}: the dataset could not be loaded: {error}") from None
        return self._loaded

    def __iter__(self) -> Iterator[tuple[str, str]]:
        source, target = self.columns
        found = False
        for number, record in enumerate(self._load(), start=1):
            where = f"{self.name}, record {number:,}"
            found = True
            yield _text(record, source, where), _text(record, target, where)
        if not found:
            raise DataError(f"{self.name} is empty.")

    def digest(self) -> str:
        return _combine("hf", self.name, str(self._load()._fingerprint))


class GeneratedPairs(Pairs):
    """A generated task: a small one is made once and kept, a large one is made anew whenever it is read."""

    def __init__(self, spec: str) -> None:
        super().__init__(spec)
        self.task: Generated = parse_generated(spec.removeprefix("generated:"))
        self._kept: list[tuple[str, str]] = []

    def __iter__(self) -> Iterator[tuple[str, str]]:
        if not self._kept and len(self.task) <= KEPT:
            self._kept = list(self.task)
        return iter(self._kept or self.task)

    def digest(self) -> str:
        return _combine("generated", self.task.digest())


def _text(record: Any, key: str, where: str) -> str:
    """The text at `key` of a record; dots in the key lead into records inside it."""
    if isinstance(record, dict) and isinstance(record.get(key), str):
        return str(record[key])
    value = record
    for step in key.split("."):
        if not isinstance(value, dict) or step not in value:
            known = ", ".join(map(repr, value)) if isinstance(value, dict) else f"a {type(value).__name__}"
            raise DataError(f"{where}: there is no {key!r}; found {known or 'nothing'}.")
        value = value[step]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # labels are often numbers
    if not isinstance(value, str):
        raise DataError(f"{where}: {key!r} is not a text but {value!r}.")
    return value


def _combine(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
