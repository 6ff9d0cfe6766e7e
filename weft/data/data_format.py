"""Formats of data files: how a task opens its data, reads a file of inputs, and notices that a file is of another kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from weft.data.file_lists import open_listed, read_listed
from weft.data.formats import Pairs, is_json, open_pairs, read_sources
from weft.data.header_check import check_columns
from weft.data.text_lines import read_lines


def read_inputs(file: Path) -> Iterable[str]:
    """The lines of a file, or the texts in its JSON lines."""
    return read_sources(file) if is_json(file) else read_lines(file)


def accept_all(pairs: Pairs, report: Callable[[str], None]) -> None:
    """Checks nothing, for data that has no columns."""


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
