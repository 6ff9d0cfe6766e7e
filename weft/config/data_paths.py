"""The files that data settings name. A run saves them as absolute paths, so that it can be continued from any folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

SCHEME = re.compile(r"[a-z]+:")
"""Data that is not a file: `generated:dates`, `hf:NAME`."""

LANGUAGE = re.compile(r"[A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8})*=")
"""The language before the name of a file, as in `en=text.txt`."""

TABLES = (".tsv", ".csv", ".jsonl", ".json")
"""Files whose columns may be named after '#'."""


def files_of(spec: str) -> list[str]:
    """The paths in `a.en,a.de`, `pairs.tsv#3,1`, `text.txt` or `en=text.txt`; none for data that is not a file."""
    return _split(spec)[0]


def absolute(spec: str, folder: Path) -> str:
    """`spec` with absolute paths; a relative path belongs to `folder`."""
    before = _language(spec)
    paths, columns = _split(spec)
    return before + ",".join(absolute_path(path, folder) for path in paths) + columns if paths else spec


def located(spec: str, folder: Path) -> str:
    """`spec` with absolute paths if all its files are in `folder`, else `spec` itself."""
    placed = absolute(spec, folder)
    return placed if all(os.path.exists(path) for path in files_of(placed)) else spec


def _split(spec: str) -> tuple[list[str], str]:
    """The paths of a spec, and the columns behind them with their '#'."""
    if SCHEME.match(spec):
        return [], ""
    spec = spec.removeprefix(_language(spec))
    path, mark, columns = spec.rpartition("#")
    if mark and "," not in path and Path(path.removesuffix(".gz")).suffix in TABLES:
        return [path], f"#{columns}"
    if os.path.exists(spec):
        return [spec], ""  # a file whose name contains a comma
    return [part.strip() for part in spec.split(",")], ""


def _language(spec: str) -> str:
    """`en=` of `en=text.txt`; nothing if there is a file of the whole name."""
    found = LANGUAGE.match(spec)
    return "" if found is None or os.path.exists(spec) else found[0]


def absolute_path(path: str, folder: Path) -> str:
    """A path made absolute, with ~ for the home folder. An empty one, which is refused where it is opened, stays empty."""
    return os.path.abspath(folder / os.path.expanduser(path)) if path else path
