"""Pairs of texts from files, Hugging Face datasets and generators, named by one short string.

    a.en,a.de                     two text files, aligned line by line
    pairs.tsv   pairs.tsv#3,1     tab-separated columns: the first two, or those with the given numbers or names
    pairs.csv   pairs.csv#en,de   comma-separated columns with quotes: `source` and `target`, or those given
    pairs.jsonl pairs.jsonl#en,de one JSON object per line: the keys `source` and `target`, or those given (a.b: b inside a)
    docs.jsonl                    documents with labels: the keys `sentences` (a list) or `text`, and `label` (also a list)
    …each also as .gz
    hf:NAME[:CONFIG][@SPLIT]#SOURCE,TARGET         a Hugging Face dataset (needs `pip install 'weft-seq2seq[datasets]'`)
    generated:dates?count=20000&seed=1&split=test  one of the generators of `weft.data.generated`

Data is streamed line by line and can be read any number of times.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from weft.data.lines import check_file, file_digest, read_lines
from weft.data.mismatch import explain_mismatch
from weft.data.pair_source import Pairs, Texts, combine
from weft.data.records import SOURCES, TARGETS, find_key, read_records, text_at
from weft.data.tables import CsvPairs, TsvPairs
from weft.errors import DataError
from weft.version import install

__all__ = ["Pairs", "Texts", "open_pairs", "read_lines"]

FORMS = (
    "'a.en,a.de', 'pairs.tsv' or 'pairs.tsv#2,3', 'pairs.jsonl' or 'pairs.jsonl#en,de', 'pairs.csv' or 'pairs.csv#en,de' "
    "(each also .gz), 'hf:NAME#SOURCE,TARGET' or 'generated:dates?count=1000'"
)

TABLES = {".tsv": TsvPairs, ".csv": CsvPairs}

KEPT = 50_000
"""Maximum number of generated pairs kept in memory: long ones take time to make, and training reads them repeatedly."""


def open_pairs(spec: str) -> Pairs:
    """Opens the pairs that `spec` names (see the top of this file).

    A wrong name or a missing file is an error here; an error inside a file is raised when it is read.
    """
    if spec.startswith("generated:"):
        return GeneratedPairs(spec)
    if spec.startswith("hf:"):
        return HuggingFacePairs(spec)
    path, columns = _columns(spec)
    kind = Path(path.removesuffix(".gz")).suffix
    if kind in TABLES and "," not in path:
        return TABLES[kind](spec, path, columns)
    if kind == ".jsonl" and "," not in path:
        return JsonPairs(spec, path, columns)
    if spec.count(",") == 1 and all(part.strip() for part in spec.split(",")):
        source, target = spec.split(",")
        return TextPairs(spec, source.strip(), target.strip())
    raise DataError(f"{spec!r} is not a known data format. Write {FORMS}.")


def _columns(spec: str) -> tuple[str, tuple[str, str] | None]:
    """Splits `path#source,target`. A path may itself contain '#': only one that is followed by two names counts."""
    path, mark, names = spec.rpartition("#")
    if not mark or names.count(",") != 1 or not path.removesuffix(".gz").endswith((*TABLES, ".jsonl")):
        return spec, None
    source, target = (name.strip() for name in names.split(","))
    return path, (source, target)


def is_table(name: str) -> bool:
    """Whether a file holds pairs: a table, or JSON lines."""
    return Path(name.removesuffix(".gz")).suffix in (*TABLES, ".jsonl")


def swapped(spec: str) -> str:
    """Names the same pairs with source and target exchanged."""
    path, columns = _columns(spec)
    if spec.startswith("hf:") or columns:
        path, _, names = spec.rpartition("#")
        return f"{path}#{','.join(reversed(names.split(',')))}"
    if is_table(path) and "," not in path:
        return f"{spec}#2,1" if path.removesuffix(".gz").endswith(".tsv") else f"{spec}#target,source"
    if spec.count(",") == 1 and not spec.startswith("generated:"):
        return ",".join(reversed(spec.split(",")))
    raise DataError(f"{spec}: source and target of this data cannot be exchanged; write it to a file first.")


class TextPairs(Pairs):
    """Two text files, aligned line by line."""

    def __init__(self, name: str, source: str, target: str) -> None:
        super().__init__(name)
        self.source, self.target = source, target
        for path in (source, target):
            check_file(path)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        empty = True
        for source, target in zip_longest(read_lines(self.source), read_lines(self.target)):
            if source is None or target is None:
                shorter = self.source if source is None else self.target
                raise DataError(f"{shorter} is empty." if empty else explain_mismatch(self.source, self.target))
            empty = False
            yield source, target
        if empty:
            raise DataError(f"{self.source} and {self.target} are empty.")

    def digest(self) -> str:
        return combine("text", file_digest(self.source), file_digest(self.target))


class JsonPairs(Pairs):
    """One JSON object per line. Blank lines are skipped."""

    def __init__(self, name: str, path: str, columns: tuple[str, str] | None) -> None:
        super().__init__(name)
        self.path = str(check_file(path))
        self.keys = columns

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for record, where in read_records(self.path):
            source, target = self.keys or (find_key(record, SOURCES), find_key(record, TARGETS))
            yield text_at(record, source, where), text_at(record, target, where)

    def digest(self) -> str:
        return combine("json", *(self.keys or ("source", "target")), file_digest(self.path))


class HuggingFacePairs(Pairs):
    """Two columns of a dataset on the Hugging Face hub, or in a local folder that `datasets` can load."""

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
                raise DataError(f"{self.name}: the package `datasets` is missing: {install('datasets')}") from None
            try:
                self._loaded = datasets.load_dataset(self.dataset, self.config or None, split=self.split or "train")
            except Exception as error:  # the loader of a dataset may raise anything
                raise DataError(f"{self.name}: the dataset could not be loaded: {error}") from None
        return self._loaded

    def __iter__(self) -> Iterator[tuple[str, str]]:
        source, target = self.columns
        empty = True
        for number, record in enumerate(self._load(), start=1):
            where = f"{self.name}, record {number:,}"
            empty = False
            yield text_at(record, source, where), text_at(record, target, where)
        if empty:
            raise DataError(f"{self.name} is empty.")

    def digest(self) -> str:
        return combine("hf", self.name, str(self._load()._fingerprint))


class GeneratedPairs(Pairs):
    """Generated pairs. Small sets are generated once and kept in memory, large ones every time they are read."""

    def __init__(self, spec: str) -> None:
        from weft.data.generated import parse_generator  # many modules, and most data is not generated

        super().__init__(spec)
        self.generator = parse_generator(spec.removeprefix("generated:"))
        self._kept: list[tuple[str, str]] = []

    def __iter__(self) -> Iterator[tuple[str, str]]:
        if not self._kept and len(self.generator) <= KEPT:
            self._kept = list(self.generator)
        return iter(self._kept or self.generator)

    def digest(self) -> str:
        return combine("generated", self.generator.digest())
