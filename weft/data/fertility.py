"""Fertilities: how many target tokens each source token stands for, by an alignment that is counted from the corpus.

The alignment is IBM Model 2 with a prior that prefers the diagonal (Brown et al. 1993; Dyer et al. 2013): a target token at j/T
is translated from a source token at i/S with probability ∝ t(target | source) · exp(−SHARP · |i/S − j/T|). Only the table t is
learned. It is part of a run, because the position in the data of a resumed run has to mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.corpus import Corpus

FILE = "fertility.npz"
PASSES = 5
PAIRS = 100_000
SHARP = 4.0
UNSEEN = 1e-9

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Lexicon:
    """t(target | source) of the token pairs that occur: sorted keys source · targets + target, and their probabilities."""

    keys: Ids
    chance: NDArray[np.float64]
    targets: int

    @staticmethod
    def count(corpus: Corpus, targets: int) -> Lexicon:
        """Counted by expectation maximisation over evenly spaced pairs of the corpus."""
        rows = np.linspace(0, len(corpus) - 1, min(PAIRS, len(corpus))).round().astype(np.int64)
        cells, words, priors, before = [], [], [], 0
        for row in rows:
            source, target = corpus.row("source", row)[:-1].astype(np.int64), corpus.row("target", row)[:-1].astype(np.int64)
            cells.append((source[None] * targets + target[:, None]).ravel())
            words.append(np.repeat(np.arange(before, before + len(target)), len(source)))
            priors.append(_prior(len(target), len(source)).ravel())
            before += len(target)
        every, prior = np.concatenate(words), np.concatenate(priors)
        keys, place = np.unique(np.concatenate(cells), return_inverse=True)
        source, chance = keys // targets, np.ones(len(keys))
        for _ in range(PASSES):
            share = chance[place] * prior
            share /= np.bincount(every, share)[every]
            expected = np.bincount(place, share, len(keys))
            chance = expected / np.bincount(source, expected)[source]
        return Lexicon(keys, chance, targets)

    def save(self, run: Path) -> None:
        np.savez(run / FILE, keys=self.keys, chance=self.chance, targets=np.array(self.targets))

    @staticmethod
    def load(run: Path) -> Lexicon:
        with np.load(run / FILE) as saved:
            return Lexicon(saved["keys"], saved["chance"], int(saved["targets"]))

    def fertilities(self, source: Ids, target: Ids) -> Ids:
        """[S]: how many of the target tokens are aligned with each source token. Each is aligned with one."""
        cells = source[None] * self.targets + target[:, None]
        place = np.searchsorted(self.keys, cells).clip(max=len(self.keys) - 1)
        chance = np.where(self.keys[place] == cells, self.chance[place], UNSEEN)
        return np.bincount((chance * _prior(len(target), len(source))).argmax(1), minlength=len(source))


def _prior(target: int, source: int) -> NDArray[np.float64]:
    """[T, S]: how probable each source position is for each target position before their tokens are known."""
    rows, columns = ((np.arange(count) + 0.5) / count for count in (target, source))
    prior: NDArray[np.float64] = np.exp(-SHARP * np.abs(rows[:, None] - columns[None]))
    return prior
