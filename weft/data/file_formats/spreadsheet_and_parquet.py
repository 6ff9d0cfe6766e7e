"""Tables that are not text: spreadsheets (.xlsx, with openpyxl) and Parquet files (with pyarrow), row by row."""

import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from weft.data.formats import SOURCES, CsvPairs, Pairs, Row, combine, text_at
from weft.data.text_lines import check_file, file_digest
from weft.errors import DataError
from weft.version import install

UNPACKED = 1 << 30
"""Bytes that the parts of a spreadsheet may have when they are unpacked."""

START = 4096
"""Bytes at the beginning of a part that would hold a declaration of entities."""


class SpreadsheetPairs(CsvPairs):
    """Two columns of a sheet, chosen as in .csv; `#Sheet2!en,de` names the sheet, else it is the first one."""

    kind, advice = "xlsx", "Give every row a text in both columns."

    def __init__(self, name: str, path: str, columns: tuple[str, ...] | None) -> None:
        self.sheet = ""
        if columns and "!" in columns[0]:
            self.sheet, _, first = columns[0].rpartition("!")
            columns = (first, *columns[1:])
        super().__init__(name, path, columns)
        self.line_files = ()

    def rows(self) -> Iterator[Row]:
        self.left_out.clear()
        width = 0
        with self._opened() as book:
            names = book.sheetnames
            if not names:
                raise DataError(f"{self.path}: there is no sheet in it.")
            if self.sheet and self.sheet not in names:
                raise DataError(f"{self.path}: there is no sheet {self.sheet!r}; found {', '.join(map(repr, names))}.")
            if len(names) > 1:
                self.left_out["further sheets"] = len(names) - 1
            for number, cells in enumerate(self._cells(book, self.sheet or names[0]), start=1):
                texts = ["" if cell is None else str(cell) for cell in cells]
                while texts and not texts[-1]:
                    texts.pop()
                if not texts:
                    continue
                width = width or len(texts)
                yield number, texts + [""] * (width - len(texts))

    def _cells(self, book: Any, sheet: str) -> Iterator[Any]:
        """The cells of each row of a sheet, which is read as it goes."""
        try:
            yield from book[sheet].iter_rows(values_only=True)
        except Exception as error:  # a damaged file may raise anything
            raise DataError(f"{self.path}: the sheet {sheet!r} cannot be read: {error}") from None

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            import openpyxl
        except ImportError:
            raise DataError(f"{self.path}: spreadsheets need the package openpyxl: {install('tables')}") from None
        try:
            self._check()
            book = openpyxl.load_workbook(self.path, read_only=True, data_only=True)
        except DataError:
            raise
        except Exception as error:  # a damaged file may raise anything
            raise DataError(f"{self.path} is not a spreadsheet that can be read: {error}") from None
        try:
            yield book
        finally:
            book.close()

    def _check(self) -> None:
        """Raises DataError for a file that unpacks to too much, or that declares entities."""
        with zipfile.ZipFile(self.path) as archive:
            size = sum(part.file_size for part in archive.infolist())
            if size > UNPACKED:
                raise DataError(f"{self.path} has {size:,} bytes when unpacked; at most {UNPACKED:,} are allowed")
            for part in archive.namelist():
                if part.endswith((".xml", ".rels")):
                    with archive.open(part) as file:
                        start = file.read(START).replace(b"\0", b"")
                    if b"<!DOCTYPE" in start or b"<!ENTITY" in start:
                        raise DataError(f"{self.path}: {part} declares entities, which are not read")

    def sources(self) -> Iterator[str]:
        """The column with one of the names in `SOURCES`, or the only one."""
        rows = self.rows()
        _, first = next(rows, (0, [""]))
        column = next((first.index(name) for name in SOURCES if name in first), None)
        if column is None and len(first) > 1:
            raise DataError(f"{self.path} has {len(first)} columns; call the one to read `source`, in its first row.")
        if column is None:
            yield first[0]
        yield from (cells[column or 0] for _, cells in rows)

    def digest(self) -> str:
        return combine(self.sheet, super().digest())


class ParquetPairs(Pairs):
    """Two columns of a Parquet file: `source` and `target`, the only two, or those after `#`. `a.b` is the field b of a."""

    def __init__(self, name: str, path: str, columns: tuple[str, str] | None) -> None:
        super().__init__(name)
        self.path = str(check_file(path))
        self.columns = columns

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self.left_out.clear()
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise DataError(f"{self.path}: Parquet files need the package pyarrow: {install('tables')}") from None
        try:
            with pyarrow.parquet.ParquetFile(self.path, memory_map=True) as file:
                source, target = self._chosen(file.schema_arrow.names)
                wanted = sorted({source.partition(".")[0], target.partition(".")[0]} & set(file.schema_arrow.names))
                batches = file.iter_batches(batch_size=4096, columns=wanted or None)
                yield from self._texts((record for batch in batches for record in batch.to_pylist()), source, target)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: the Parquet file cannot be read: {error}") from None

    def _texts(self, records: Iterable[dict[str, Any]], source: str, target: str) -> Iterator[tuple[str, str]]:
        for number, record in enumerate(records, start=1):
            if _is_null(record, source) or _is_null(record, target):
                self.left_out["without a text"] += 1
                continue
            where = f"{self.path}, row {number:,}"
            yield text_at(record, source, where), text_at(record, target, where)

    def _chosen(self, names: list[str]) -> tuple[str, str]:
        if self.columns is not None:
            return self.columns
        if {"source", "target"} <= set(names):
            return "source", "target"
        if len(names) != 2:
            listed = ", ".join(map(repr, islice(names, 12)))
            raise DataError(
                f"{self.path} has the columns {listed}. Choose two, as in {self.path}#en,de or #translation.en,translation.de."
            )
        return names[0], names[1]

    def digest(self) -> str:
        return combine("parquet", *(self.columns or ()), file_digest(self.path))


def _is_null(record: dict[str, Any], key: str) -> bool:
    """Whether a column, a field of it, or a structure around the field has no value."""
    value: Any = record
    for step in [key] if key in record else key.split("."):
        if not isinstance(value, dict) or step not in value:
            return False  # there is no such field, which is an error
        value = value[step]
        if value is None:
            return True
    return False
