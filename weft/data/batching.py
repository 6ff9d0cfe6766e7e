"""Batches of a corpus: their random but resumable order, the token budget that cuts them, their layouts, and prefetching.

An epoch is a keyed permutation of the row numbers, computed and never stored, cut into windows. A window is sorted by length
(unless packed) and cut to the token budget, and its batches are shuffled. Continuing at a `Position` recomputes one window,
however large the corpus and however far the training.
"""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.batch import Layout, Position, power_of_two
from weft.data.corpus import Corpus, Rows

Item = TypeVar("Item")

PACKED_LONGEST = 64
"""Packed layouts assume a sentence of at least this length, so that most of them have one size."""
PACKED_TYPICAL = 16
"""Packed layouts assume at least as many sentences of this length as the budget holds."""
FINE = 32
"""Lengths up to this are rounded up to a multiple of an eighth of it; beyond, to a quarter of the power of two below."""
WINDOW = 1 << 18
ROUNDS = 4


def round_up(length: int) -> int:
    """Rounds up to one of few sizes: four between a power of two and the next, and eight up to `FINE`."""
    step = power_of_two(max(length, FINE)) // 8
    return -(-length // step) * step


def cut_padded(longest: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """Places to cut rows at, so that in each batch rows × the longest of them stays within the budget."""
    cuts = [0]
    while (start := cuts[-1]) < len(longest):
        most = max(1, budget // int(longest[start]))
        area = np.maximum.accumulate(longest[start : start + most]) * np.arange(1, len(longest[start : start + most]) + 1)
        cuts.append(start + max(1, int(np.searchsorted(area, budget, "right"))))
    return np.array(cuts)


def cut_packed(lengths: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """Places to cut rows at, so that the entries of each batch stay within the budget in every column."""
    ends = lengths.cumsum(0)
    cuts, before = [0], np.zeros(lengths.shape[1], np.int64)
    while (start := cuts[-1]) < len(lengths):
        fit = min(int(np.searchsorted(end, begin + budget, "right")) for end, begin in zip(ends.T, before))
        cuts.append(max(start + 1, fit))
        before = ends[cuts[-1] - 1]
    return np.array(cuts)


def evaluation_batches(corpus: Corpus, budget: int) -> Iterator[Rows]:
    """Every row once, sorted by length, in batches of padded rows."""
    lengths = np.asarray(corpus.lengths, dtype=np.int64)
    order: Rows = np.lexsort((*lengths.T, lengths.max(1)))
    cuts = cut_padded(lengths[order].max(1), budget)
    return (order[start:end] for start, end in pairwise(cuts))


def lay_out(lengths: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False) -> list[Layout]:
    """The layout of each column of a batch, given its lengths [n, k].

    Padded: each column is as wide as its longest row. Rounded: all columns have the rounded length of the longest row, and
    empty rows fill the budget, so that few shapes occur; only the device knows the lengths. Packed: one row of `budget` tokens
    per column; an example longer than the budget makes the row longer.
    """
    if packed:
        return _pack(lengths, budget)
    if not rounded:
        return [Layout.padded(column) for column in lengths.T]
    extent = round_up(int(lengths.max()))
    filled = np.zeros((max(len(lengths), budget // extent), lengths.shape[1]), np.int64)
    filled[: len(lengths)] = lengths
    return [replace(Layout.padded(column, extent), known=None, longest=extent) for column in filled.T]


def _pack(lengths: NDArray[np.int64], budget: int) -> list[Layout]:
    """Packed layouts in few sizes: everything that depends on the sentences is rounded up to a power of two."""
    longest = [power_of_two(max(PACKED_LONGEST, int(most))) for most in lengths.max(0)]
    budgets = [max(budget, int(total)) for total in lengths.sum(0)]
    padding = [-(-(room - int(total)) // most) for room, total, most in zip(budgets, lengths.sum(0), longest, strict=True)]
    pieces = power_of_two(max(len(lengths) + max(padding) + 1, budget // PACKED_TYPICAL))
    return [Layout.pack(column, room, longest=most, pieces=pieces) for column, room, most in zip(lengths.T, budgets, longest)]


def spread(values: NDArray[Any], layout: Layout) -> torch.Tensor:
    """Puts entries, in reading order, where the layout has tokens, and 0 (PAD) elsewhere: [B, T], or [B, T, …] of vectors."""
    ok = layout.mask.numpy()
    whole = np.issubdtype(values.dtype, np.integer)
    block = np.zeros((*ok.shape, *values.shape[1:]), np.int64 if whole else values.dtype)
    block[ok] = values
    return torch.from_numpy(block)


def permute(places: NDArray[np.uint64], count: int, key: tuple[int, ...]) -> NDArray[np.uint64]:
    """The elements at the given places of a permutation of 0 … count−1, chosen by `key`.

    A Feistel network permutes the numbers of an even number of bits; a result beyond `count` is permuted again until it is
    inside, which keeps it a permutation (cycle walking, Black & Rogaway 2002).
    """
    half = max(1, (int(count - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64).astype(np.uint64)
    elements = _feistel(places, half, keys)
    while len(outside := np.flatnonzero(elements >= count)):
        elements[outside] = _feistel(elements[outside], half, keys)
    return elements


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

    def passes(self, position: Position) -> float:
        """The number of epochs before a position."""
        begun = sum(map(len, self.window(position.epoch, position.window)[: position.batch])) if position.batch else 0
        return position.epoch + min(self.order.count, position.window * self.size + begun) / self.order.count

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


def prefetch(iterator: Iterator[Item], depth: int) -> Generator[Item, None, None]:
    """Yields the items of `iterator` in order, while one thread prepares up to `depth` of them ahead.

    An exception of the iterator is raised in place of its item. Closing or dropping the generator ends the thread. A depth of
    0 prepares nothing ahead.
    """
    if depth <= 0:
        yield from iterator
        return
    end = object()
    with ThreadPoolExecutor(1, "prefetch") as worker:
        ahead: deque[Future[Any]] = deque(worker.submit(next, iterator, end) for _ in range(depth))
        try:
            while (item := ahead.popleft().result()) is not end:
                ahead.append(worker.submit(next, iterator, end))
                yield item
        finally:
            worker.shutdown(cancel_futures=True)
