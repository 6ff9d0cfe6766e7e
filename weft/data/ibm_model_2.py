"""Word alignment by IBM Model 2 with a prior that prefers the diagonal (Brown et al. 1993; Dyer et al. 2013).

A target token at j/T is translated from a source token at i/S with probability ∝ t(target | source) · exp(−SHARP ·
|i/S − j/T|), of which only the table t is learned.

Shapes: S, T tokens of a source and its target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PASSES = 5
SHARP = 4.0
UNSEEN = 1e-9

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TranslationTable:
    """t(target | source) of the token pairs that occur: sorted keys source · targets + target, and their probabilities."""

    keys: Ids
    chance: NDArray[np.float64]
    targets: int

    @staticmethod
    def count(pairs: Sequence[tuple[Ids, Ids]], targets: int) -> TranslationTable:
        """Counted by expectation maximisation over pairs of a source and a target, whose tokens are below `targets`."""
        cells, words, priors, before = [], [], [], 0
        for source, target in pairs:
            cells.append((source[None] * targets + target[:, None]).ravel())
            words.append(np.repeat(np.arange(before, before + len(target)), len(source)))
            priors.append(diagonal(len(target), len(source)).ravel())
            before += len(target)
        every, prior = np.concatenate(words), np.concatenate(priors)
        keys, place = np.unique(np.concatenate(cells), return_inverse=True)
        source, chance = keys // targets, np.ones(len(keys))
        for _ in range(PASSES):
            share = chance[place] * prior
            share /= np.bincount(every, share)[every]
            expected = np.bincount(place, share, len(keys))
            chance = expected / np.bincount(source, expected)[source]
        return TranslationTable(keys, chance, targets)

    def links(self, source: Ids, target: Ids) -> Ids:
        """[T]: the source token that each target token is aligned with."""
        cells = source[None] * self.targets + target[:, None]
        place = np.searchsorted(self.keys, cells).clip(max=len(self.keys) - 1)
        chance = np.where(self.keys[place] == cells, self.chance[place], UNSEEN)
        best: Ids = (chance * diagonal(len(target), len(source))).argmax(1)
        return best


def diagonal(target: int, source: int) -> NDArray[np.float64]:
    """[T, S]: how probable each source position is for each target position before their tokens are known."""
    rows, columns = ((np.arange(count) + 0.5) / count for count in (target, source))
    prior: NDArray[np.float64] = np.exp(-SHARP * np.abs(rows[:, None] - columns[None]))
    return prior
