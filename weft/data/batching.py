"""Batches of a corpus: rows cut to a token budget, and their layouts. `resumable_order` has their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.batch import Layout, power_of_two
from weft.data.corpus import Corpus, Rows

SHORTEST = 64
"""The least longest sentence that packed layouts assume, so that most of them have one size."""
TYPICAL = 16
"""The least number of sentences that packed layouts assume is the budget divided by this."""
LEAST = 32
"""Lengths up to this are rounded up to a multiple of an eighth of it; beyond, to a quarter of the power of two below."""


def round_up(length: int) -> int:
    """Rounds up to one of few sizes: four between a power of two and the next, and eight up to `LEAST`."""
    step = power_of_two(max(length, LEAST)) // 8
    return -(-length // step) * step


def cut_padded(longest: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """Where to cut rows, so that in each batch rows × the longest of them stays within the budget."""
    cuts = [0]
    while (start := cuts[-1]) < len(longest):
        most = max(1, budget // int(longest[start]))
        area = np.maximum.accumulate(longest[start : start + most]) * np.arange(1, len(longest[start : start + most]) + 1)
        cuts.append(start + max(1, int(np.searchsorted(area, budget, "right"))))
    return np.array(cuts)


def cut_packed(lengths: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """Where to cut rows, so that the entries of each batch stay within the budget in every column."""
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
    if rounded:
        return _round(lengths, budget)
    return [Layout.padded(column) for column in lengths.T]


def _pack(lengths: NDArray[np.int64], budget: int) -> list[Layout]:
    """Packed layouts in few sizes: everything that depends on the sentences is rounded up to a power of two."""
    longest = [power_of_two(max(SHORTEST, int(most))) for most in lengths.max(0)]
    budgets = [max(budget, int(total)) for total in lengths.sum(0)]
    behind = [-(-(room - int(total)) // most) for room, total, most in zip(budgets, lengths.sum(0), longest, strict=True)]
    pieces = power_of_two(max(len(lengths) + max(behind) + 1, budget // TYPICAL))
    return [Layout.pack(column, room, longest=most, pieces=pieces) for column, room, most in zip(lengths.T, budgets, longest)]


def _round(lengths: NDArray[np.int64], budget: int) -> list[Layout]:
    """Padded layouts of one shape, which follows from the longest row."""
    extent = round_up(int(lengths.max()))
    filled = np.zeros((max(len(lengths), budget // extent), lengths.shape[1]), np.int64)
    filled[: len(lengths)] = lengths
    return [replace(Layout.padded(column, extent), known=None, longest=extent) for column in filled.T]


def spread(values: NDArray[Any], layout: Layout) -> torch.Tensor:
    """Puts entries, in reading order, where the layout has tokens, and 0 (PAD) elsewhere: [B, T], or [B, T, …] of vectors."""
    ok = layout.ok.numpy()
    whole = np.issubdtype(values.dtype, np.integer)
    block = np.zeros((*ok.shape, *values.shape[1:]), np.int64 if whole else values.dtype)
    block[ok] = values
    return torch.from_numpy(block)
