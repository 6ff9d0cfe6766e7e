"""Corpora on disk: named ragged columns, written once into a cache folder and memory-mapped from then on.

NAME          the entries of all rows, one row after the other: token ids, labels, word starts, frames, image bytes
NAME.offsets  [N + 1] where each row begins
lengths       [N, k] entries per row of the k columns by which batches are sized
about.json    counts and types

A cache folder is named by a hash of what it was made from. It is built aside and renamed when complete, so a folder with the
right name is whole, and two processes that build the same one at once do not interfere.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.errors import DataError, RunError
from weft.file_access import MALFORMED, close_to_others, default_mode, why_untrusted

Cached = TypeVar("Cached")
Rows = NDArray[np.int64]
Columns = dict[str, Sequence[Any]]
"""Per column one sequence of entries for each row."""
Encode = Callable[[list[Any]], tuple[Columns, dict[str, int]]]
"""Turns examples into columns, and says how many it left out for which reason."""

BROKEN = (OSError, *MALFORMED, RunError, DataError)
"""Raised when a cached folder is missing or damaged."""

STALE = 86_400.0
"""Seconds after which an abandoned build is removed."""

VERSION = 3
CHUNK = 1 << 14
"""Examples that are encoded at a time, unless they are large."""


def cache_folder(chosen: str | None = None) -> Path:
    """The place of prepared data: `chosen` (data.cache), by default the cache of the user."""
    return Path(chosen).expanduser() if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"


def find_or_build(folder: Path, key: Any, load: Callable[[Path], Cached], build: Callable[[Path], None]) -> Cached:
    """Loads the cached folder that `key`, plain data, names; `build` fills it first if it is missing.

    `load` raises one of `BROKEN` if the folder is missing or a failing disk has damaged it.
    """
    place = trusted_place(folder / hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest())
    with suppress(*BROKEN):
        return load(place)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        aside = Path(tempfile.mkdtemp(prefix=place.name + ".", suffix=".part", dir=folder))
        try:
            with ExitStack() as stack:
                if gc.isenabled():  # the collector would spend half of the time walking over lists of ids and find nothing
                    gc.disable()
                    stack.callback(gc.enable)
                build(aside)
            aside.chmod(default_mode(folder=True))  # a temporary folder is private
            close_own(aside)
            _rename(aside, place, load)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        free = "" if isinstance(error, PermissionError) else "Make room there. "
        raise DataError(
            f"{folder}: the tokenised data could not be written: {error.strerror or error}. The unfinished part was removed. "
            f"{free}To use another folder, set data.cache or the environment variable XDG_CACHE_HOME."
        ) from None
    return load(place)


def trusted_place(place: Path) -> Path:
    """A file or folder in a cache, or one of this user's own beside it if others may have written what is there.

    What belongs to this user is removed, to be made again.
    """
    chosen = _is_chosen(place.parent)
    for each in (place, place.with_name(f"{place.stem}.{os.geteuid()}{place.suffix}")):
        if not os.path.lexists(each) or not (problem := why_untrusted(each, chosen=chosen)):
            return each
        warnings.warn(f"{problem}; what it holds is not used, and made again", stacklevel=3)
        with suppress(OSError):
            if each.lstat().st_uid != os.geteuid():
                continue
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
            return each
    raise DataError(f"{problem}, so nothing is read from there. Remove it, or set data.cache to a folder of your own.")


def close_own(place: Path) -> None:
    """Takes the permission to write from others for what is in weft's own cache, so that it is trusted later."""
    if not _is_chosen(place.parent):
        close_to_others(place)


def _is_chosen(folder: Path) -> bool:
    """Whether the user has named a cache by data.cache, rather than that it is weft's own."""
    return cache_folder() not in (folder, *folder.parents)


def _rename(aside: Path, place: Path, load: Callable[[Path], Any]) -> None:
    """Moves a complete folder into its place, unless another process was first."""
    try:
        os.rename(aside, place)
    except OSError:
        with suppress(*BROKEN):
            load(place)
            return
        shutil.rmtree(place)
        os.rename(aside, place)


def _sweep(folder: Path) -> None:
    """Removes what killed builds left behind long ago."""
    for part in folder.glob("*.part"):
        with suppress(FileNotFoundError):  # another process may complete it at this moment
            if time.time() - part.stat().st_mtime > STALE:
                shutil.rmtree(part, ignore_errors=True)


class Examples(Protocol):
    """Examples of any kind that can be read again; `digest` identifies them."""

    name: str

    def __iter__(self) -> Iterator[Any]: ...

    def digest(self) -> str: ...


def ids_below(size: int) -> str:
    """The type of a column of ids below `size`: two bytes each if that is enough."""
    return "uint16" if size <= 1 << 16 else "uint32"


@dataclass
class CorpusReport:
    """Counts of the examples that were read, kept, and left out for each reason (the first that applies).

    unit: what they are called · made: what the rows made of them are called, if a row is not an example.
    """

    unit: str = "pairs"
    read: int = 0
    kept: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    made: str = ""

    def describe(self) -> str:
        reasons = [f"{count:,} {reason}" for reason, count in self.left_out.items() if count]
        text = f"{self.read:,} {self.unit} read, {self.kept:,} {f'{self.made} made' if self.made else 'kept'}"
        return f"{text}; left out: {', '.join(reasons)}." if reasons else f"{text}."


class Corpus:
    """Columns on disk. Only the rows that are used are read."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "about.json").read_text())
        digest = about.pop("digest", None)
        if digest not in (None, _digest(about)):  # older ones have none
            raise ValueError("about.json is damaged")
        self.folder, self.report = folder, CorpusReport(**about["report"])
        kept = self.report.kept
        self.values: dict[str, NDArray[Any]] = {}
        self.offsets: dict[str, NDArray[Any]] = {}
        for name, dtype in about["columns"].items():
            self.values[name] = np.memmap(folder / name, dtype, "r")
            self.offsets[name] = np.memmap(folder / f"{name}.offsets", np.uint64, "r", shape=(kept + 1,))
            if self.offsets[name][-1] != len(self.values[name]):
                raise ValueError(f"the column {name} was cut short")
        self.lengths: NDArray[Any] = np.memmap(folder / "lengths", about["length"], "r", shape=(kept, about["sized"]))

    def __len__(self) -> int:
        return self.report.kept

    @property
    def longest(self) -> int:
        """The most entries of a row in any column by which batches are sized."""
        return int(self.lengths.max())

    @property
    def identity(self) -> str:
        """A hash of everything that the corpus was made from."""
        return self.folder.name.partition(".")[0]

    @property
    def parts(self) -> Sequence[Corpus]:
        """The corpora that it joins."""
        return [self]

    def row(self, name: str, row: int) -> NDArray[Any]:
        """The entries of one row of a column."""
        begin, end = self.offsets[name][row : row + 2]
        return self.values[name][int(begin) : int(end)]

    def gather(self, name: str, rows: Rows) -> tuple[NDArray[Any], Rows]:
        """The entries of some rows one after the other, and their number per row."""
        offsets = self.offsets[name]
        begins = np.asarray(offsets[rows]).astype(np.int64)
        lengths = np.asarray(offsets[rows + 1]).astype(np.int64) - begins
        ends = lengths.cumsum()
        places = np.arange(ends[-1]) + np.repeat(begins - (ends - lengths), lengths)
        return np.asarray(self.values[name][places]), lengths


@dataclass(frozen=True)
class Encoding:
    """The way from examples to the rows of a corpus.

    key: plain data that identifies everything `encode` depends on · columns: the numpy type of an entry of each: "uint16" for
    ids, "(80,)float32" for frames · sized: the columns whose lengths batches are cut by · unit, made: see `CorpusReport` ·
    none: what an error says if there are no rows · chunk: examples that are encoded at a time.
    """

    key: Any
    encode: Encode
    columns: Mapping[str, str]
    sized: Sequence[str]
    unit: str = "pairs"
    made: str = ""
    none: str = ""
    chunk: int = CHUNK

    def prepare(self, sources: Sequence[Examples], *, folder: Path, progress: Callable[[int], None] | None = None) -> Corpus:
        """The corpus of all examples, from the cache in `folder` if it is there, otherwise encoded now.

        progress: called with the number of examples read so far.
        """

        def build(aside: Path) -> None:
            report = self._write(aside, chain.from_iterable(sources), progress)
            if not report.kept:
                names = ", ".join(some.name for some in sources)
                problem = self.none or f"no {self.unit.removesuffix('s')} is left to train on."
                raise DataError(f"{names}: {problem} {report.describe()}")

        digests = [some.digest() for some in sources]
        return find_or_build(
            folder, ["corpus", VERSION, digests, self.key, dict(self.columns), list(self.sized)], Corpus, build
        )

    def _write(self, aside: Path, examples: Iterator[Any], progress: Callable[[int], None] | None) -> CorpusReport:
        report = CorpusReport(self.unit, made=self.made)
        ends = dict.fromkeys(self.columns, 0)
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(open(aside / name, "wb"))
                for name in [*self.columns, *(f"{column}.offsets" for column in self.columns), "lengths"]
            }
            for name in self.columns:
                files[f"{name}.offsets"].write(np.zeros(1, np.uint64).data)
            while chunk := list(islice(examples, self.chunk)):
                made, reasons = self.encode(chunk)
                counts = {name: np.fromiter(map(len, made[name]), np.int64, len(made[name])) for name in self.columns}
                for name, dtype in self.columns.items():
                    files[name].write(np.fromiter(chain.from_iterable(made[name]), dtype, int(counts[name].sum())).tobytes())
                    files[f"{name}.offsets"].write((ends[name] + counts[name].cumsum()).astype(np.uint64).data)
                    ends[name] += int(counts[name].sum())
                lengths = np.stack([counts[name] for name in self.sized], 1).astype(np.uint32)
                files["lengths"].write(lengths.data)
                report.read, report.kept = report.read + len(chunk), report.kept + len(lengths)
                for reason, count in reasons.items():
                    report.left_out[reason] = report.left_out.get(reason, 0) + count
                if progress is not None:
                    progress(report.read)
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        about = {"report": asdict(report), "columns": dict(self.columns), "length": "uint32", "sized": len(self.sized)}
        (aside / "about.json").write_text(json.dumps(about | {"digest": _digest(about)}, indent=1))
        return report


def _digest(about: Mapping[str, Any]) -> str:
    """A hash of what about.json says, by which a failing disk is noticed."""
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=8).hexdigest()
