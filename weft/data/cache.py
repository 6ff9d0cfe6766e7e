"""The tokenised corpus: written once, memory-mapped ever after, never in RAM.

A cache is a folder named by a hash of the texts, the tokenizers and the filters. It is built beside its place and renamed
when complete, so what has the right name is whole, and two processes that build the same one at once do not meet.

    tokens   the ids of pair after pair, source then target, both ended by EOS; two bytes each if the vocabularies allow
    lengths  [N, 2] tokens of source and target, EOS counted
    offsets  [N + 1] where each pair begins in `tokens`
    about.json  counts and types
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.batch import EOS
from weft.data.copying import number_pairs
from weft.data.formats import Pairs
from weft.data.tokenizer import Tokenizer
from weft.errors import DataError

Kept = TypeVar("Kept")

BROKEN = (OSError, ValueError, KeyError, TypeError)
"""What reading a cache raises that is not there or not whole."""

VERSION = 1
CHUNK = 1 << 14
STALE = 86_400.0
"""Seconds after which a build that was given up is swept away."""


def cache_folder() -> Path:
    """Where tokenised data goes unless a user says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"


@dataclass
class Report:
    """How many pairs were read, kept, and left out for which reason (the first that applies)."""

    read: int = 0
    kept: int = 0
    empty: int = 0
    too_long: int = 0
    ratio: int = 0
    duplicates: int = 0

    def describe(self) -> str:
        reasons = {
            "with an empty side": self.empty,
            "too long": self.too_long,
            "of too different lengths": self.ratio,
            "seen before": self.duplicates,
        }
        left_out = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        text = f"{self.read:,} pairs read, {self.kept:,} kept"
        return f"{text}; left out: {', '.join(left_out)}." if left_out else f"{text}."


class Corpus:
    """Tokenised pairs on disk. Only what is looked at is read."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "about.json").read_text())
        self.folder = folder
        self.report = Report(**about["report"])
        self.tokens: NDArray[Any] = np.memmap(folder / "tokens", about["token"], "r")
        self.lengths: NDArray[Any] = np.memmap(folder / "lengths", about["length"], "r", shape=(self.report.kept, 2))
        self.offsets: NDArray[Any] = np.memmap(folder / "offsets", np.uint64, "r", shape=(self.report.kept + 1,))

    def __len__(self) -> int:
        return self.report.kept

    def source(self, row: int) -> NDArray[Any]:
        """The ids of a source text, EOS at the end."""
        start = int(self.offsets[row])
        return self.tokens[start : start + int(self.lengths[row, 0])]

    def target(self, row: int) -> NDArray[Any]:
        """The ids of a target text, EOS at the end."""
        return self.tokens[int(self.offsets[row]) + int(self.lengths[row, 0]) : int(self.offsets[row + 1])]


def prepare(
    pairs: Sequence[Pairs],
    source: Tokenizer,
    target: Tokenizer,
    *,
    folder: Path,
    max_length: int,
    max_ratio: float | None = None,
    drop_duplicates: bool = False,
    copying: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """The corpus of `pairs`, out of the cache in `folder` if it is there, otherwise built.

    Left out are pairs with a side that is empty or has more than `max_length` tokens, whose numbers of tokens differ
    by more than the factor `max_ratio`, or (with `drop_duplicates`) that were there before. With `copying`, unknown words of
    a source have ids of their own (see `weft.data.copying`). `progress` is told how many pairs have been read so far.
    """
    digests = [some.digest() for some in pairs], source.digest(), target.digest()
    about = [VERSION, digests, max_length, max_ratio, drop_duplicates, *(["copying"] if copying else [])]
    filters = _Filters(max_length, max_ratio, _Seen() if drop_duplicates else None)

    def build(aside: Path) -> None:
        _build(aside, pairs, source, target, filters, copying, progress)

    return find_or_build(folder, about, _whole, build)


def find_or_build(folder: Path, about: Any, opened: Callable[[Path], Kept], build: Callable[[Path], None]) -> Kept:
    """What `opened` makes of the place in the cache that `about`, plain data, names; `build` fills it if it is not there.

    `opened` raises an error of files or of values where nothing is there, or where a failing disk has left something broken.
    """
    place = folder / hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()
    with suppress(*BROKEN):
        return opened(place)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        aside = Path(tempfile.mkdtemp(prefix=place.name + ".", suffix=".part", dir=folder))
        try:
            with _no_collector():
                build(aside)
            _rename(aside, place, opened)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{folder}: the tokenised data could not be written: {error.strerror or error}. "
            "The unfinished part was removed. Make room there, or set data.cache to another folder."
        ) from None
    return opened(place)


def _whole(place: Path) -> Corpus:
    corpus = Corpus(place)
    if corpus.offsets[-1] != len(corpus.tokens):
        raise ValueError("the tokens were cut short")
    return corpus


def _rename(aside: Path, place: Path, opened: Callable[[Path], Any]) -> None:
    """Put a complete cache in its place, unless another process was first."""
    try:
        os.rename(aside, place)
    except OSError:
        with suppress(*BROKEN):
            opened(place)
            return
        shutil.rmtree(place)
        os.rename(aside, place)


def _sweep(folder: Path) -> None:
    """Remove what builds left behind that were killed long ago."""
    for part in folder.glob("*.part"):
        if time.time() - part.stat().st_mtime > STALE:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Python's cycle collector would walk over the many lists of each chunk and find nothing, for half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _build(
    aside: Path,
    pairs: Sequence[Pairs],
    source: Tokenizer,
    target: Tokenizer,
    filters: _Filters,
    copying: bool,
    progress: Callable[[int], None] | None,
) -> None:
    ids = max(source.size, target.size) + (filters.max_length if copying else 0)
    token = np.uint16 if ids <= 1 << 16 else np.uint32
    length = np.uint16 if filters.max_length < (1 << 16) - 1 else np.uint32
    report, start = filters.report, 0
    with (
        open(aside / "tokens", "wb") as tokens,
        open(aside / "lengths", "wb") as lengths,
        open(aside / "offsets", "wb") as offsets,
    ):
        offsets.write(np.zeros(1, np.uint64).data)
        for texts in _chunks(chain.from_iterable(pairs)):
            sides = source.encode_batch([pair[0] for pair in texts]), target.encode_batch([pair[1] for pair in texts])
            kept = filters.keep(texts, *(number_pairs(source, texts, *sides) if copying else sides))
            counts = np.fromiter((len(ids) + 1 for pair in kept for ids in pair), np.int64, 2 * len(kept)).reshape(-1, 2)
            ends = (start + counts.sum(1).cumsum()).astype(np.uint64)
            every = chain.from_iterable(part for pair in kept for ids in pair for part in (ids, (EOS,)))
            tokens.write(np.fromiter(every, token, int(counts.sum())).data)
            lengths.write(counts.astype(length).data)
            offsets.write(ends.data)
            start += int(counts.sum())
            if progress is not None:
                progress(report.read)
        for file in (tokens, lengths, offsets):
            file.flush()
            os.fsync(file.fileno())
    if not report.kept:
        names = ", ".join(some.name for some in pairs)
        raise DataError(f"{names}: no pair is left to train on. {report.describe()}")
    about = {"report": asdict(report), "token": np.dtype(token).name, "length": np.dtype(length).name}
    (aside / "about.json").write_text(json.dumps(about, indent=1))


def _chunks(pairs: Iterator[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    while chunk := list(islice(pairs, CHUNK)):
        yield chunk


Ids = list[int]


class _Filters:
    """Decides which pairs stay, and counts."""

    def __init__(self, max_length: int, max_ratio: float | None, seen: _Seen | None) -> None:
        self.max_length, self.max_ratio, self.seen = max_length, max_ratio, seen
        self.report = Report()

    def keep(self, texts: list[tuple[str, str]], sources: list[Ids], targets: list[Ids]) -> list[tuple[Ids, Ids]]:
        """The token ids of those pairs of a chunk that stay."""
        n, report = len(texts), self.report
        sizes = np.array([np.fromiter(map(len, side), np.int64, n) for side in (sources, targets)])
        blank = np.fromiter((not (pair[0].strip() and pair[1].strip()) for pair in texts), bool, n)
        short, long = sizes.min(0), sizes.max(0)
        empty = blank | (short == 0)
        too_long = ~empty & (long > self.max_length)
        uneven = ~empty & ~too_long & (long > short * (self.max_ratio or self.max_length))
        left = np.flatnonzero(~(empty | too_long | uneven))
        known = self.seen.add([texts[i] for i in left]) if self.seen else np.zeros(len(left), bool)
        report.read += n
        report.empty += int(empty.sum())
        report.too_long += int(too_long.sum())
        report.ratio += int(uneven.sum())
        report.duplicates += int(known.sum())
        kept = left[~known].tolist()
        report.kept += len(kept)
        return [(sources[i], targets[i]) for i in kept]


class _Seen:
    """Which pairs were there before, by 8-byte hashes in sorted runs: 8 MB for a million pairs.

    Runs of similar size are merged, so there are never more than a few, and each hash moves a logarithmic number of times.
    """

    def __init__(self) -> None:
        self.runs: list[NDArray[np.uint64]] = []

    def add(self, texts: list[tuple[str, str]]) -> NDArray[np.bool_]:
        """For each pair whether an equal one came earlier."""
        digests = b"".join(hashlib.blake2b(f"{s}\0{t}".encode(), digest_size=8).digest() for s, t in texts)
        hashes = np.frombuffer(digests, np.uint64)
        unique, first = np.unique(hashes, return_index=True)
        known = np.ones(len(hashes), bool)
        known[first] = False
        for run in self.runs:
            place = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            known |= run[place] == hashes
        self.runs.append(np.sort(hashes[~known]) if known.any() else unique)
        while len(self.runs) > 1 and len(self.runs[-1]) * 2 >= len(self.runs[-2]):
            self.runs[-2:] = [np.sort(np.concatenate(self.runs[-2:]), kind="stable")]
        self.runs = [run for run in self.runs if len(run)]
        return known
