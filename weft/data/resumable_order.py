"""The order of training batches: random, the same for every process, and resumable at any position.

An epoch is a keyed permutation of the row numbers, computed and never stored, cut into windows. A window is sorted by length
(unless packed) and cut to the token budget, and its batches are shuffled. Continuing at a `Position` recomputes one window,
however large the corpus and however far the training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from weft.data.batch import Position
from weft.data.batching import cut_packed, cut_padded, round_up
from weft.data.corpus import Rows

WINDOW = 1 << 18
ROUNDS = 4


def permute(places: NDArray[np.uint64], count: int, key: tuple[int, ...]) -> NDArray[np.uint64]:
    """The elements at the given places of a permutation of 0 … count−1, chosen by `key`.

    A Feistel network permutes the numbers of an even number of bits; a result beyond `count` is permuted again until it is
    inside, which keeps it a permutation (cycle walking, Black & Rogaway 2002).
    """
    half = max(1, (int(count - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64).astype(np.uint64)
    found = _feistel(places, half, keys)
    while len(outside := np.flatnonzero(found >= count)):
        found[outside] = _feistel(found[outside], half, keys)
    return found


def _feistel(numbers: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    low, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = numbers >> shift, numbers & low
    for key in keys:
        mixed = (right ^ key) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        left, right = right, left ^ (mixed & low)
    return (left << shift) | right


class Lengths(Protocol):
    """Entries per row [N, k] of the columns that count, for instance tokens of source and target."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> NDArray[Any]: ...


class Order(Protocol):
    """The rows of an epoch, `count` of them, in a random order."""

    @property
    def count(self) -> int: ...

    def rows(self, places: NDArray[np.uint64], epoch: int) -> Rows:
        """The rows at the given places of the order."""
        ...


@dataclass(frozen=True)
class Permutation:
    """Each of `count` rows once per epoch."""

    count: int
    seed: int

    def rows(self, places: NDArray[np.uint64], epoch: int) -> Rows:
        return permute(places, self.count, (self.seed, epoch)).astype(np.int64)


class Batches:
    """An endless stream of row numbers, a batch at a time.

    lengths  [N, k], see `Lengths`
    order    the rows of an epoch; by default each row once
    budget   padded: rows times the longest entry of any column stays within it; packed: the entries of each column do.
             A row that exceeds it forms a batch of its own.
    rounded  padded: lengths are rounded up as `lay_out` does
    """

    def __init__(
        self,
        lengths: Lengths,
        budget: int,
        *,
        seed: int,
        order: Order | None = None,
        window: int = WINDOW,
        packed: bool = False,
        rounded: bool = False,
    ) -> None:
        self.lengths, self.budget, self.seed, self.packed, self.rounded = lengths, budget, seed, packed, rounded
        self.order = order or Permutation(len(lengths), seed)
        self.size = window
        self.windows = -(-self.order.count // window)

    def stream(self, position: Position) -> Iterator[tuple[Rows, Position]]:
        """Endless batches from `position` on, each with the position of the next."""
        epoch, number, batch = position
        while True:
            window = self.window(epoch, number)
            after = Position(epoch, number + 1, 0) if number + 1 < self.windows else Position(epoch + 1, 0, 0)
            for place in range(batch, len(window)):
                yield window[place], Position(epoch, number, place + 1) if place + 1 < len(window) else after
            epoch, number, batch = after

    def window(self, epoch: int, number: int) -> list[Rows]:
        """The batches of one window of an epoch, which follow from the seed, the epoch and its number."""
        if number >= self.windows:
            return []  # the run was resumed with less data
        places = np.arange(number * self.size, min(self.order.count, (number + 1) * self.size), dtype=np.uint64)
        rows = self.order.rows(places, epoch)
        lengths = np.asarray(self.lengths[rows], dtype=np.int64)
        if self.packed:
            return [rows[start:end] for start, end in pairwise(cut_packed(lengths, self.budget))]
        # By the longest column only: sorting by the others too would fill batches slightly better, but put the same rows
        # together in every epoch (Multi30k, 8192 tokens: 94 instead of 92 % filled, 80 instead of 29 % of neighbours kept).
        longer = lengths.max(1)
        if self.rounded:
            longer = np.array([round_up(length) for length in range(int(longer.max()) + 1)])[longer]
        order = np.argsort(longer, kind="stable")
        rows = rows[order]
        cuts = cut_padded(longer[order], self.budget)
        shuffled = np.random.default_rng((self.seed, epoch, number)).permutation(len(cuts) - 1)
        return [rows[cuts[place] : cuts[place + 1]] for place in shuffled]
