"""Pairs from two columns of a table: tab-separated (.tsv) or comma-separated with quotes (.csv).

Columns are chosen by number, counted from 1, or by name. Names are those of the first row, which is then no pair.
"""

from __future__ import annotations

import csv
from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice

from weft.data.lines import check_file, file_digest, read_lines
from weft.data.pair_source import Pairs, combine
from weft.errors import DataError

DELIMITERS = ",;\t"
"""What may separate the columns of a .csv."""

SAMPLE = 50
"""Rows of a .csv that decide which delimiter it uses."""

Row = tuple[int, list[str]]
"""The number of a line, and its cells."""


class TablePairs(Pairs):
    """Two columns of a table with a pair per row. Blank rows are skipped.

    Every row must have as many columns as the first; otherwise a stray delimiter inside a text would silently truncate it.
    """

    kind: str
    advice: str
    default: tuple[str, ...] = ("0", "1")

    def __init__(self, name: str, path: str, columns: tuple[str, str] | None) -> None:
        super().__init__(name)
        self.path = str(check_file(path))
        self.chosen = columns
        numeric = [column.isdecimal() for column in columns or ()]
        if len(set(numeric)) > 1 or any(number and not int(text) for number, text in zip(numeric, columns or ())):
            raise DataError(f"{name}: columns are two numbers from 1 on, or two names from the first row.")
        self.named = not all(numeric)

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """All rows, the first one included, that are not blank."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        rows = self.rows()
        number, first = next(rows, (0, []))
        if not first:
            raise DataError(f"{self.path} is empty.")
        source, target = self._places(number, first)
        if not self.headed(first):
            yield first[source], first[target]
        pair = (0, [""])
        for pair in rows:
            number, cells = pair
            if len(cells) != len(first):
                raise DataError(
                    f"{self.path}, line {number:,}: {len(cells)} columns, but the lines before it have {len(first)}: "
                    f"{_excerpt(cells)}. {self.advice}"
                )
            yield cells[source], cells[target]
        if self.headed(first) and not pair[0]:
            raise DataError(f"{self.path} is empty except for its first row, {_excerpt(first)}.")

    def headed(self, first: list[str]) -> bool:
        """Whether the first row, of these cells, names the columns."""
        return self.named

    def head(self, count: int) -> list[list[str]]:
        """The cells of the first rows."""
        return [cells for _, cells in islice(self.rows(), count)]

    def _places(self, number: int, first: list[str]) -> tuple[int, int]:
        """The indices of both columns."""
        where = f"{self.path}, line {number:,}"
        if self.headed(first):
            names = [cell.strip() for cell in first]
            for column in self.chosen or ():
                if (count := names.count(column)) != 1:
                    raise DataError(f"{where}: {count or 'no'} column is called {column!r}; found {_list(names)}.")
            source, target = (names.index(column) for column in self.chosen or ("source", "target"))
            return source, target
        source, target = (int(column) - 1 for column in self.chosen or ("1", "2"))
        if max(source, target) >= len(first):
            raise DataError(
                f"{where}: there is no column {max(source, target) + 1}, only {len(first)}: {_excerpt(first)}. {self.advice} "
                f"Choose other columns like {self.path}#2,3."
            )
        return source, target

    def digest(self) -> str:
        columns = self.chosen or self.default
        if self.chosen and not self.named:
            columns = tuple(str(int(column) - 1) for column in self.chosen)
        return combine(self.kind, *columns, file_digest(self.path))


class TsvPairs(TablePairs):
    """Tab-separated columns without quotes."""

    kind, advice = "tsv", "Separate columns by tabs, and check for a missing tab or a tab inside a text."

    def rows(self) -> Iterator[Row]:
        return ((number, line.split("\t")) for number, line in enumerate(read_lines(self.path), start=1) if line)


class CsvPairs(TablePairs):
    """Columns separated by commas, semicolons or tabs; a text may be quoted, and then contain delimiters and line ends.

    Unless columns are chosen, they are those called `source` and `target`, or the only two.
    """

    kind, advice = "csv", 'Put texts that contain the delimiter into quotes: "a, b".'
    default = ("source or first", "target or second")

    def rows(self) -> Iterator[Row]:
        return self._parse(self._delimiter())

    def _parse(self, delimiter: str) -> Iterator[Row]:
        reader = csv.reader((f"{line}\n" for line in read_lines(self.path)), delimiter=delimiter, strict=True)
        try:
            for cells in reader:
                if any(cells):
                    yield reader.line_num, cells
        except csv.Error as error:
            raise DataError(f"{self.path}, line {reader.line_num:,}: not valid CSV: {error}. Check its quotes.") from None

    def _delimiter(self) -> str:
        """The first delimiter by which all rows of a sample have the same number of columns, and more than one."""
        for delimiter in DELIMITERS:
            try:
                widths = {len(cells) for _, cells in islice(self._parse(delimiter), SAMPLE)}
            except DataError:
                continue
            if len(widths) == 1 and min(widths) > 1:
                return delimiter
        return DELIMITERS[0]

    def headed(self, first: list[str]) -> bool:
        if self.chosen is not None:
            return self.named
        if {"source", "target"} <= {cell.strip() for cell in first}:
            return True
        if len(first) > 2:
            names = [cell.strip() for cell in first]
            raise DataError(
                f"{self.path} has {len(first)} columns: {_list(names)}. Choose two by name, {self.path}#{names[0]},{names[1]}, "
                f"or, if the first row is a pair, by number, {self.path}#1,2."
            )
        return False


def _list(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _excerpt(cells: list[str]) -> str:
    return repr("\t".join(cells)[:80])
