"""Lexical translation probabilities: which target tokens translate which source tokens."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.data.corpus import Corpus

Ids = NDArray[np.int32]
Numbers = NDArray[np.int64]

CHUNK = 4096
"""Number of pairs processed at once."""

PASSES = 3
"""Passes of expectation maximisation over all pairs, after they have been counted."""


def likely_translations(corpus: Corpus, sources: int, targets: int, *, most: int, frequent: int, pairs: int) -> tuple[Ids, Ids]:
    """The `most` best target tokens for each source token, [sources, most], and the most frequent target tokens, [frequent].

    The best come first, without the frequent ones; −1 fills the rows of tokens with fewer. Of a large corpus, `pairs` evenly
    spaced pairs are used. A token counts once per text. Tokens are ranked by translation probabilities of IBM Model 1 (Brown
    et al. 1993), initialised with Dice's coefficients, so that few passes suffice.
    """
    rows = np.linspace(0, len(corpus) - 1, min(pairs, len(corpus))).round().astype(np.int64)
    chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    with_source, with_target = np.zeros(sources, np.int64), np.zeros(targets, np.int64)
    both: list[tuple[Numbers, Numbers]] = []
    for chunk in chunks:
        for source, target in _vocabularies(corpus, chunk):
            with_source[source] += 1
            with_target[target] += 1
        _add(both, _cells(corpus, chunk, targets)[0])
    keys, counts = _merge(both)
    source, target = np.divmod(keys, targets)
    chance = 2 * counts / (with_source[source] + with_target[target])
    for _ in range(PASSES):
        expected = np.zeros(len(keys))
        for chunk in chunks:
            cells, words = _cells(corpus, chunk, targets)
            place = np.searchsorted(keys, cells)
            share = chance[place] / np.bincount(words, chance[place])[words]
            expected += np.bincount(place, share, len(keys))
        chance = expected / np.bincount(source, expected)[source]
    always = np.argsort(-with_target, kind="stable")[:frequent]
    return _best(source, target, np.where(np.isin(target, always), -1.0, chance), sources, most), always.astype(np.int32)


def _best(source: Numbers, target: Numbers, chance: NDArray[np.float64], sources: int, most: int) -> Ids:
    """The `most` targets of each source with the highest probability that is not negative."""
    order = np.lexsort((target, -chance, source))
    source, target, chance = source[order], target[order], chance[order]
    rank = np.arange(len(source)) - np.searchsorted(source, source)
    kept = (rank < most) & (chance >= 0)
    best = np.full((sources, most), -1, np.int32)
    best[source[kept], rank[kept]] = target[kept]
    return best


def _vocabularies(corpus: Corpus, rows: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """The distinct tokens of each side of the given pairs."""
    for row in rows.tolist():
        yield np.unique(corpus.row("source", row)).astype(np.int64), np.unique(corpus.row("target", row)).astype(np.int64)


def _cells(corpus: Corpus, rows: Numbers, targets: int) -> tuple[Numbers, Numbers]:
    """Every combination of a source and a target token of a pair, as one number, and the index of its target word."""
    cells, words, count = [], [], 0
    for source, target in _vocabularies(corpus, rows):
        cells.append((source[:, None] * targets + target).ravel())
        words.append(np.tile(np.arange(count, count + len(target)), len(source)))
        count += len(target)
    return np.concatenate(cells), np.concatenate(words)


def _add(parts: list[tuple[Numbers, Numbers]], numbers: Numbers) -> None:
    """Adds numbers to their counts. A part is merged into the one before it only when it is at least half as large."""
    parts.append(np.unique(numbers, return_counts=True))
    while len(parts) > 1 and 2 * len(parts[-1][0]) >= len(parts[-2][0]):
        parts[-2:] = [_merge(parts[-2:])]


def _merge(parts: list[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    """All numbers, sorted, and how often each occurred."""
    keys, place = np.unique(np.concatenate([keys for keys, _ in parts]), return_inverse=True)
    return keys, np.bincount(place, np.concatenate([counts for _, counts in parts])).astype(np.int64)
