"""The files of a corpus while it is written: blocks of rows behind each other, and finished shards joined into one corpus.

A large corpus is written in shards of `BLOCKS` blocks, each a folder with the files of a corpus, in `HASH.shards` beside the
place of the corpus. A shard is written aside and renamed, so a shard with the right name is whole. Whoever was killed continues
after the last one; processes that build the same corpus at once, also on several machines, write the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HASHES = "seen"
"""A column of one 8-byte hash per row, for encodings that keep only the first of equal rows. A corpus does not store it."""

SEEN = "seen before"
"""The reason for leaving out a row whose hash an earlier one has."""

BLOCKS = 16
"""Blocks of a shard."""


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

    def count(self, read: int, kept: int, left_out: Mapping[str, int]) -> None:
        """Counts further examples."""
        self.read, self.kept = self.read + read, self.kept + kept
        for reason, examples in left_out.items():
            self.left_out[reason] = self.left_out.get(reason, 0) + examples

    def add(self, other: CorpusReport) -> None:
        """Counts the examples of another report."""
        self.count(other.read, other.kept, other.left_out)

    def describe(self) -> str:
        reasons = [f"{count:,} {reason}" for reason, count in self.left_out.items() if count]
        text = f"{self.read:,} {self.unit} read, {self.kept:,} {f'{self.made} made' if self.made else 'kept'}"
        return f"{text}; left out: {', '.join(reasons)}." if reasons else f"{text}."


@dataclass(frozen=True)
class Block:
    """Some examples as rows. read: the number of examples · counts, values: the entries of each row, and all of them."""

    read: int
    counts: dict[str, NDArray[np.int64]]
    values: dict[str, NDArray[Any]]
    left_out: dict[str, int]
    hashes: NDArray[np.uint64] | None = None

    @classmethod
    def pack(cls, read: int, made: Mapping[str, Any], left_out: dict[str, int], types: Mapping[str, str]) -> Block:
        """The rows that an encoding has made of `read` examples."""
        counts = {name: np.fromiter(map(len, made[name]), np.int64, len(made[name])) for name in types}
        values = {
            name: np.fromiter(chain.from_iterable(made[name]), dtype, int(counts[name].sum())) for name, dtype in types.items()
        }
        return cls(read, counts, values, left_out, np.asarray(made[HASHES], np.uint64) if HASHES in made else None)

    def without(self, known: NDArray[np.bool_]) -> Block:
        """The rows that are not `known`; the others are counted as seen before."""
        if not known.any():
            return self
        values = {name: each[np.repeat(~known, self.counts[name])] for name, each in self.values.items()}
        counts = {name: each[~known] for name, each in self.counts.items()}
        left_out = {**self.left_out, SEEN: self.left_out.get(SEEN, 0) + int(known.sum())}
        hashes = None if self.hashes is None else self.hashes[~known]
        return replace(self, counts=counts, values=values, left_out=left_out, hashes=hashes)


class SeenHashes:
    """Remembers 8-byte hashes in sorted runs: 8 MB for a million.

    Runs of similar size are merged, so there are only a few, and each hash moves a logarithmic number of times.
    """

    def __init__(self) -> None:
        self.runs: list[NDArray[np.uint64]] = []

    def add(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """For each hash, whether an equal one came earlier."""
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


def file_names(columns: Iterable[str]) -> list[str]:
    """The files of a corpus, besides about.json."""
    return [*(name for column in columns for name in (column, f"{column}.offsets")), "lengths"]


def write_about(folder: Path, report: CorpusReport, columns: Mapping[str, str], sized: Sequence[str]) -> None:
    """Writes the counts and types of a corpus. Its other files are complete."""
    about = {"report": asdict(report), "columns": dict(columns), "length": "uint32", "sized": len(sized)}
    (folder / "about.json").write_text(json.dumps(about | {"digest": digest_of(about)}, indent=1))


def digest_of(about: Mapping[str, Any]) -> str:
    """A hash of what about.json says, by which a failing disk is noticed."""
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=8).hexdigest()


def write_blocks(
    folder: Path, blocks: Iterable[Block], report: CorpusReport, sized: Sequence[str], types: Mapping[str, str]
) -> None:
    """Makes `folder` and writes a corpus into it, which is counted in `report`. sized, types: see `Encoding`."""
    folder.mkdir()
    ends = dict.fromkeys(types, 0)
    with ExitStack() as stack:
        files = {name: stack.enter_context(open(folder / name, "wb")) for name in file_names(types)}
        for name in types:
            files[f"{name}.offsets"].write(np.zeros(1, np.uint64).data)
        for block in blocks:
            for name in types:
                files[name].write(block.values[name].tobytes())
                files[f"{name}.offsets"].write((ends[name] + block.counts[name].cumsum()).astype(np.uint64).data)
                ends[name] += int(block.counts[name].sum())
            lengths = np.stack([block.counts[name] for name in sized], 1).astype(np.uint32)
            files["lengths"].write(lengths.data)
            if block.hashes is not None:
                if HASHES not in files:
                    files[HASHES] = stack.enter_context(open(folder / HASHES, "wb"))
                files[HASHES].write(block.hashes.data)
            report.count(block.read, len(lengths), block.left_out)
    write_about(folder, report, types, sized)


def finished_shard(folder: Path) -> CorpusReport:
    """The counts of a shard that is whole. Raises an error if it is missing or damaged."""
    about = json.loads((folder / "about.json").read_text())
    report, columns = CorpusReport(**about["report"]), about["columns"]
    sizes = {f"{name}.offsets": 8 * (report.kept + 1) for name in columns} | {"lengths": 4 * about["sized"] * report.kept}
    if (folder / HASHES).exists():
        sizes[HASHES] = 8 * report.kept
    _check_sizes(folder, sizes)
    ends = {name: int(np.fromfile(folder / f"{name}.offsets", np.uint64, offset=8 * report.kept)[0]) for name in columns}
    _check_sizes(folder, {name: ends[name] * np.dtype(dtype).itemsize for name, dtype in columns.items()})
    return report


def _check_sizes(folder: Path, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        if (folder / name).stat().st_size != size:
            raise ValueError(f"{folder / name} was cut short")


def hashes_of(shard: Path) -> NDArray[np.uint64]:
    """The hashes of the rows of a shard; none if they were not needed."""
    return np.fromfile(shard / HASHES, np.uint64) if (shard / HASHES).exists() else np.zeros(0, np.uint64)


def join_shards(folder: Path, shards: Sequence[Path], types: Mapping[str, str]) -> None:
    """Writes the files of all shards behind each other into `folder`, without their counts."""
    for name in file_names(types):
        with open(folder / name, "wb") as out:
            end = np.zeros(1, np.uint64)
            if name.endswith(".offsets"):
                out.write(end.data)
            for shard in shards:
                if name.endswith(".offsets"):
                    offsets = np.fromfile(shard / name, np.uint64)[1:] + end
                    end = offsets[-1:] if len(offsets) else end
                    out.write(offsets.data)
                else:
                    with open(shard / name, "rb") as file:
                        shutil.copyfileobj(file, out, 1 << 22)
