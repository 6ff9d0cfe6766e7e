"""Several corpora as one, each with a share of every epoch.

An epoch has as many rows as the corpora have together. Each corpus has its quota of them, in a random order that mixes all
corpora, and fills the quota by going through its own rows, pass after pass, each pass in a new order. So every row of a corpus
is read as often as any other, give or take one, and what an epoch reads follows from the seed and its number: the stream can
be entered anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.data.batch import Position
from weft.data.batching import Batches, permute
from weft.data.corpus import Corpus, Rows
from weft.data.word_noise import CorpusNoise

Entries = tuple[NDArray[Any], Rows]
"""The entries of some rows of a column, one row after the other, and their number per row."""


def quotas(sizes: Sequence[int], weights: Sequence[float | None], temperature: float) -> list[int]:
    """Rows of each corpus per epoch, at least one: in proportion to the weights or, without, to size^(1 / temperature).

    A temperature of 1 reads all rows equally often. The higher it is, the more often those of small corpora (Arivazhagan et al.
    2019).
    """
    known = [weight for weight in weights if weight is not None]
    if not known and temperature == 1:
        return list(sizes)
    wish = np.array(known if known else [size ** (1 / temperature) for size in sizes], np.float64)
    return [max(1, round(share)) for share in wish / wish.sum() * sum(sizes)]


@dataclass(frozen=True)
class EpochQuota:
    """The rows of an epoch, drawn from corpora of these sizes by quota. Rows are numbered through all corpora."""

    sizes: Sequence[int]
    quotas: Sequence[int]
    seed: int

    @property
    def count(self) -> int:
        return sum(self.quotas)

    def rows(self, places: NDArray[np.uint64], epoch: int) -> Rows:
        drawn = permute(places, self.count, (self.seed, epoch)).astype(np.int64)
        rows = np.empty(len(drawn), np.int64)
        first = turn = 0
        for number, (size, quota) in enumerate(zip(self.sizes, self.quotas, strict=True), start=1):
            mine = np.flatnonzero((drawn >= turn) & (drawn < turn + quota))
            passes, place = np.divmod(epoch * quota + drawn[mine] - turn, size)
            for each in np.unique(passes):
                now = passes == each
                rows[mine[now]] = first + permute(place[now].astype(np.uint64), size, (self.seed, int(each), number)).astype(
                    np.int64
                )
            first, turn = first + size, turn + quota
        return rows

    def seen(self, batches: Batches, position: Position) -> NDArray[np.int64]:
        """The number of rows of each corpus before a position."""
        places = np.arange(min(self.count, position.window * batches.size), dtype=np.uint64)
        partly = [self.rows(places, position.epoch), *batches.window(position.epoch, position.window)[: position.batch]]
        corpus = np.searchsorted(np.cumsum(self.sizes), np.concatenate(partly), "right")
        return np.array(self.quotas) * position.epoch + np.bincount(corpus, minlength=len(self.sizes))


@dataclass(frozen=True)
class _Lengths:
    """The lengths of the rows of several corpora, times a factor for each that noise makes longer."""

    corpora: Sequence[Corpus]
    factors: Sequence[float]

    def __len__(self) -> int:
        return sum(map(len, self.corpora))

    def __getitem__(self, rows: Rows) -> NDArray[np.int64]:
        lengths = np.empty((len(rows), self.corpora[0].lengths.shape[1]), np.int64)
        for number, mine, own in _owners(self.corpora, rows):
            lengths[mine] = np.ceil(np.asarray(self.corpora[number].lengths[own]) * self.factors[number])
        return lengths


class Mixture(Corpus):
    """Several corpora with the same columns as one.

    noising: for each corpus what changes its rows in training, if anything.
    """

    def __init__(self, corpora: Sequence[Corpus], noising: Sequence[CorpusNoise | None] | None = None) -> None:
        self.corpora, self.noising = corpora, noising or [None] * len(corpora)
        factors = [1.0 if some is None else some.growth(corpus) for corpus, some in zip(corpora, self.noising, strict=True)]
        self.lengths: Any = _Lengths(corpora, factors)
        self._noise: tuple[tuple[int, ...], int] | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def parts(self) -> Sequence[Corpus]:
        return self.corpora

    @property
    def sizes(self) -> list[int]:
        return [*map(len, self.corpora)]

    @property
    def longest(self) -> int:
        return max(corpus.longest for corpus in self.corpora)

    @property
    def identity(self) -> str:
        return " ".join(corpus.identity for corpus in self.corpora)

    def at(self, key: tuple[int, ...], budget: int) -> Mixture:
        """The mixture with noise that follows from the key. Rows stay as they are if a batch would exceed the budget."""
        if not any(self.noising):
            return self
        noisy = copy(self)
        noisy._noise = key, budget
        return noisy

    def row(self, name: str, row: int) -> NDArray[Any]:
        return self.gather(name, np.array([row]))[0]

    def gather(self, name: str, rows: Rows) -> tuple[NDArray[Any], Rows]:
        plain = self._gather(name, rows, lambda number, own: self.corpora[number].gather(name, own))
        if self._noise is None:
            return plain
        key, budget = self._noise
        noisy = self._gather(name, rows, lambda number, own: self._noisy(name, number, own, key))
        return noisy if len(noisy[0]) <= budget else _fitted(noisy, plain, budget)

    def _noisy(self, name: str, number: int, own: Rows, key: tuple[int, ...]) -> Entries:
        corpus, noising = self.corpora[number], self.noising[number]
        plain = corpus.gather(name, own)
        if noising is None or not noising.changes(name):
            return plain
        return noising(corpus, name, own, *plain, np.random.default_rng((*key, number, *name.encode())))

    def _gather(self, name: str, rows: Rows, gather: Callable[[int, Rows], Entries]) -> Entries:
        """The entries of rows in order, given those of each corpus."""
        parts = [(mine, *gather(number, own)) for number, mine, own in _owners(self.corpora, rows)]
        lengths = np.empty(len(rows), np.int64)
        for mine, _, counts in parts:
            lengths[mine] = counts
        starts = lengths.cumsum() - lengths
        values = np.empty((int(lengths.sum()), *parts[0][1].shape[1:]), parts[0][1].dtype)
        for mine, entries, counts in parts:
            values[np.arange(len(entries)) + np.repeat(starts[mine] - (counts.cumsum() - counts), counts)] = entries
        return values, lengths


def _owners(corpora: Sequence[Corpus], rows: Rows) -> Iterator[tuple[int, Rows, Rows]]:
    """For each corpus that has some of the rows: its number, the places of these rows, and their numbers inside it."""
    end = 0
    for number, corpus in enumerate(corpora):
        begin, end = end, end + len(corpus)
        mine = np.flatnonzero((rows >= begin) & (rows < end))
        if len(mine):
            yield number, mine, rows[mine] - begin


def _fitted(noisy: Entries, plain: Entries, budget: int) -> Entries:
    """The noisy rows, but the plain ones in place of those that grow most, until all fit the budget."""
    growth = noisy[1] - plain[1]
    order = np.argsort(-growth, kind="stable")
    saved = np.maximum(growth[order], 0).cumsum()
    back = np.zeros(len(growth), bool)
    back[order[: int(np.searchsorted(saved, len(noisy[0]) - budget)) + 1]] = True
    sides = [np.split(values, lengths.cumsum()[:-1]) for values, lengths in (noisy, plain)]
    chosen = [sides[int(use)][row] for row, use in enumerate(back)]
    return np.concatenate(chosen), np.array([len(row) for row in chosen])
