"""Corpora on disk: named ragged columns, written once into a cache folder and memory-mapped from then on.

NAME          the entries of all rows, one row after the other: token ids, labels, word starts, frames, image bytes
NAME.offsets  [N + 1] where each row begins
lengths       [N, k] entries per row of the k columns by which batches are sized
about.json    counts and types

A cache folder is named by a hash of what it was made from. It is built aside, synced and renamed when complete, so a folder
with the right name is whole, and two processes that build the same one at once do not interfere. Nothing is locked, so this
also holds for machines that share a disk. A large corpus is built in shards, see `weft.data.corpus_files`.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import json
import multiprocessing
import os
import shutil
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from itertools import count as numbers
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.data.corpus_files import (
    BLOCKS,
    HASHES,
    Block,
    CorpusReport,
    SeenHashes,
    digest_of,
    finished_shard,
    hashes_of,
    join_shards,
    write_about,
    write_blocks,
)
from weft.data.text_lines import count_lines
from weft.errors import DataError, RunError
from weft.file_access import ASIDE, MALFORMED, close_to_others, own_cache, sync, sync_all, unfinished, why_untrusted
from weft.worker_processes import Workers, cores

Cached = TypeVar("Cached")
Rows = NDArray[np.int64]
Columns = dict[str, Sequence[Any] | NDArray[Any]]
"""Per column one sequence of entries for each row."""
Encode = Callable[[list[Any]], tuple[Columns, dict[str, int]]]
"""Turns examples into columns, and says how many it left out for which reason. It depends on these examples alone."""
Processes = int | Literal["auto"]
"""Processes that tokenise; auto: one for each core, once data turns out to be large."""

BROKEN = (OSError, *MALFORMED, RunError, DataError)
"""Raised when a cached folder is missing or damaged."""

STALE = 7 * 86_400.0
"""Seconds after which the finished shards of an abandoned build are removed."""

VERSION = 3
CHUNK = 1 << 14
"""Examples that are encoded at a time, unless they are large."""

PAUSE = 5.0
"""Seconds between messages about tokenising."""

ALONE = 4
"""Chunks that one process encodes before it starts others, which takes as long as encoding some."""

MOST = 16
"""The most processes that are started by themselves. The one that reads and writes has no time for more than about ten."""


def cache_folder(chosen: str | None = None) -> Path:
    """The place of prepared data: `chosen` (data.cache), by default the cache of the user."""
    if chosen:
        return Path(os.path.expanduser(chosen))
    if (own := own_cache()) is None:
        raise DataError(
            "this user has no home, so there is no cache: set data.cache or the environment variable XDG_CACHE_HOME"
        )
    return own


def find_or_build(folder: Path, key: Any, load: Callable[[Path], Cached], build: Callable[[Path], None]) -> Cached:
    """Loads the cached folder that `key`, plain data, names; `build` fills it first if it is missing.

    `load` raises one of `BROKEN` if the folder is missing or a failing disk has damaged it.
    """
    place = trusted_place(folder / hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest())
    with suppress(*BROKEN):
        return load(place)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder, place)
        with unfinished(place, sweep=True) as aside, ExitStack() as stack:
            if gc.isenabled():  # the collector would spend half of the time walking over lists of ids and find nothing
                gc.disable()
                stack.callback(gc.enable)
            aside.mkdir()
            build(aside)
            close_own(aside)
            sync_all(aside)
            _rename(aside, place, load)
            sync(folder)
    except OSError as error:
        with suppress(*BROKEN):
            return load(place)  # another process has completed it, and removed the shards of both
        kept = "Finished shards were kept: the next attempt continues after them. " if shards_of(place).exists() else ""
        free = "Make room there. " if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else ""
        raise DataError(
            f"{folder}: the tokenised data could not be written: {error.strerror or error}. The unfinished part was removed. "
            f"{kept}{free}To use another folder, set data.cache or the environment variable XDG_CACHE_HOME."
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
    return own_cache() not in (folder, *folder.parents)


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


def shards_of(place: Path) -> Path:
    """The folder of the finished shards of a corpus that is built for a place, or aside."""
    return place.with_name(f"{place.name.removeprefix(ASIDE).partition('.')[0]}.shards")


def _sweep(folder: Path, place: Path) -> None:
    """Removes finished shards that nobody has continued after for long, except for those of this place."""
    for shards in folder.glob("*.shards"):
        with suppress(FileNotFoundError):  # another process may complete it at this moment
            if shards != shards_of(place) and time.time() - shards.stat().st_mtime > STALE:
                shutil.rmtree(shards, ignore_errors=True)


class Examples(Protocol):
    """Examples of any kind that can be read again; `digest` identifies them."""

    name: str

    def __iter__(self) -> Iterator[Any]: ...

    def digest(self) -> str: ...


def ids_below(size: int) -> str:
    """The type of a column of ids below `size`: two bytes each if that is enough."""
    return "uint16" if size <= 1 << 16 else "uint32"


class Corpus:
    """Columns on disk. Only the rows that are used are read."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "about.json").read_text())
        digest = about.pop("digest", None)
        if digest not in (None, digest_of(about)):  # older ones have none
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
    none: what an error says if there are no rows · chunk: examples that are encoded at a time; 0: `CHUNK`.

    If the columns that `encode` returns have one called `seen`, with a hash for each row, only the first of equal rows is kept.
    """

    key: Any
    encode: Encode
    columns: Mapping[str, str]
    sized: Sequence[str]
    unit: str = "pairs"
    made: str = ""
    none: str = ""
    chunk: int = 0

    def prepare(
        self,
        sources: Sequence[Examples],
        *,
        folder: Path,
        processes: Processes = "auto",
        progress: Callable[[int], None] = lambda read: None,
    ) -> Corpus:
        """The corpus of all examples, from the cache in `folder` if it is there, otherwise encoded now.

        progress: called with the number of examples read so far.
        """

        def build(aside: Path) -> None:
            try:
                report = self._write(aside, chain.from_iterable(sources), processes, progress)
                if not report.kept:
                    names = ", ".join(some.name for some in sources)
                    problem = self.none or f"no {self.unit.removesuffix('s')} is left to train on."
                    raise DataError(f"{names}: {problem} {report.describe()}")
            except DataError:  # other data has other shards
                shutil.rmtree(shards_of(aside), ignore_errors=True)
                raise

        digests = [some.digest() for some in sources]
        key = ["corpus", VERSION, digests, self.key, dict(self.columns), list(self.sized)]
        corpus = find_or_build(folder, key, Corpus, build)
        shutil.rmtree(shards_of(corpus.folder), ignore_errors=True)
        return corpus

    def _write(
        self, aside: Path, examples: Iterator[Any], processes: Processes, progress: Callable[[int], None]
    ) -> CorpusReport:
        """Writes the corpus into `aside`: at once, or in shards that are then joined. Finished shards are not encoded again."""
        total, seen, shards = self._report(), SeenHashes(), list[Path]()
        finished = trusted_place(shards_of(aside))
        places = (finished / f"{number:06d}" for number in numbers())
        for place in places:
            try:
                total.add(finished_shard(place))
            except BROKEN:
                break
            seen.add(hashes_of(place))
            shards.append(place)
        next(islice(examples, total.read, total.read), None)
        part, full = aside / "shard", BLOCKS * (self.chunk or CHUNK)
        with closing(self._blocks(examples, processes)) as blocks:
            for shard in chain([place], places):
                report = self._report()
                new = _unseen(islice(blocks, BLOCKS), seen, total.read, progress)
                write_blocks(part, new, report, self.sized, self.columns)
                if report.read < full and not shards:
                    _move_up(part)
                    return report
                if report.read:
                    finished.mkdir(exist_ok=True)
                    close_own(finished)
                    close_own(part)
                    sync_all(part)
                    _rename(part, shard, finished_shard)
                    sync(finished)
                    shutil.rmtree(part, ignore_errors=True)  # if another process was first
                    total.add(report)
                    shards.append(shard)
                if report.read < full:
                    break
        join_shards(aside, shards, self.columns)
        shutil.rmtree(part, ignore_errors=True)
        write_about(aside, total, self.columns, self.sized)
        return total

    def _report(self) -> CorpusReport:
        return CorpusReport(self.unit, made=self.made)

    def _blocks(self, examples: Iterator[Any], processes: Processes) -> Generator[Block]:
        """The encoded chunks of the examples, in order."""
        chunks = iter(lambda: list(islice(examples, self.chunk or CHUNK)), [])
        count = 0 if processes == "auto" else processes
        if not count:
            yield from map(self._encode, islice(chunks, ALONE))
            count = 1 if multiprocessing.current_process().daemon else min(cores(), MOST)
        if count == 1:
            yield from map(self._encode, chunks)
        elif first := next(chunks, None):
            relief = "the next attempt continues after the last finished shard; set data.processes to fewer"
            with Workers(count, self._encode, setting="data.processes", relief=relief) as workers:
                yield from workers.run_in_order(chain([first], chunks))

    def _encode(self, examples: list[Any]) -> Block:
        made, left_out = self.encode(examples)
        return Block.pack(len(examples), made, left_out, self.columns)


def _unseen(blocks: Iterator[Block], seen: SeenHashes, read: int, progress: Callable[[int], None]) -> Iterator[Block]:
    """The blocks without rows whose hashes came before. read: the number of examples before them, for `progress`."""
    for block in blocks:
        yield block if block.hashes is None else block.without(seen.add(block.hashes))
        read += block.read
        progress(read)


def _move_up(part: Path) -> None:
    """Makes the only shard of a corpus the corpus."""
    (part / HASHES).unlink(missing_ok=True)
    for file in part.iterdir():
        file.replace(part.parent / file.name)
    part.rmdir()


class TokenisingProgress:
    """Reports every few seconds how many examples are tokenised, and of how many lines.

    files: for each source of examples, those that have a line for each, more or less; without any, no total is reported.
    """

    def __init__(self, files: Sequence[Sequence[str]], what: str, report: Callable[[str], None]) -> None:
        self.files = files
        self.what, self.report, self.reported = what, report, time.monotonic()

    def __call__(self, read: int) -> None:
        if time.monotonic() - self.reported > PAUSE:
            of = f" of {self.total:,}" if self.total else ""
            self.report(f"tokenising {self.what} data: {read:,}{of} lines")
            self.reported = time.monotonic()

    @cached_property
    def total(self) -> int:
        """The lines of all files, counted only once tokenising has taken a while; 0 if some examples are not lines."""
        return count_lines(chain.from_iterable(self.files)) if all(self.files) else 0
