"""Fertilities: how many target tokens each source token stands for.

A teacher's attention aligns the tokens. Without a teacher, an alignment is counted from the corpus, by IBM Model 2 with a prior
that prefers the diagonal (Brown et al. 1993; Dyer et al. 2013): a target token at j/T is translated from a source token at i/S
with probability ∝ t(target | source) · exp(−SHARP · |i/S − j/T|). Only the table t is learned. Fertilities are part of a run,
because a resumed run has to learn from the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.data.corpus import Corpus

FILE = "fertility.npz"
COLUMN = "fertility"
PASSES = 5
PAIRS = 100_000
SHARP = 4.0
UNSEEN = 1e-9

WINDOW = 256
"""Pairs that are aligned together."""
NEAR = 1e-3

Ids = NDArray[np.int64]
Count = Callable[[Sequence[tuple[Ids, Ids]]], list[Ids]]
"""The fertilities of the source tokens of some pairs."""


@dataclass(frozen=True)
class TranslationTable:
    """t(target | source) of the token pairs that occur: sorted keys source · targets + target, and their probabilities."""

    keys: Ids
    chance: NDArray[np.float64]
    targets: int

    @staticmethod
    def count(corpus: Corpus, targets: int) -> TranslationTable:
        """Counted by expectation maximisation over evenly spaced pairs of the corpus."""
        rows = np.linspace(0, len(corpus) - 1, min(PAIRS, len(corpus))).round().astype(np.int64)
        cells, words, priors, before = [], [], [], 0
        for row in rows:
            source, target = tokens_of(corpus, int(row))
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
        return TranslationTable(keys, chance, targets)

    def __call__(self, pairs: Sequence[tuple[Ids, Ids]]) -> list[Ids]:
        return [self.fertilities(*pair) for pair in pairs]

    def fertilities(self, source: Ids, target: Ids) -> Ids:
        """[S]: how many of the target tokens are aligned with each source token. Each is aligned with one."""
        cells = source[None] * self.targets + target[:, None]
        place = np.searchsorted(self.keys, cells).clip(max=len(self.keys) - 1)
        chance = np.where(self.keys[place] == cells, self.chance[place], UNSEEN)
        return np.bincount((chance * _prior(len(target), len(source))).argmax(1), minlength=len(source))


def tokens_of(corpus: Corpus, row: int) -> tuple[Ids, Ids]:
    """The tokens of a pair, without EOS."""
    source, target = (corpus.row(name, row)[:-1].astype(np.int64) for name in ("source", "target"))
    return source, target


def attach(run: Path, corpora: Sequence[Corpus], fertilities: Callable[[], Count]) -> None:
    """Gives the corpora a column of fertilities, one per entry of the column `source`; EOS stands for nothing.

    They are saved in the run. Those that are not there yet are counted by `fertilities()`.
    """
    file = run / FILE
    saved = dict(np.load(file)) if file.exists() else {}
    if missing := [corpus for corpus in corpora if corpus.folder.name not in saved]:
        count = fertilities()
        saved |= {corpus.folder.name: _counted(corpus, count) for corpus in missing}
        with open(aside := file.with_suffix(".part"), "wb") as written:
            np.savez(written, allow_pickle=False, **saved)
        aside.replace(file)
    for corpus in corpora:
        corpus.values[COLUMN], corpus.offsets[COLUMN] = saved[corpus.folder.name], corpus.offsets["source"]


def _counted(corpus: Corpus, count: Count) -> NDArray[np.uint16]:
    fertilities, begins = np.zeros(len(corpus.values["source"]), np.uint16), corpus.offsets["source"]
    for first in range(0, len(corpus), WINDOW):
        rows = range(first, min(first + WINDOW, len(corpus)))
        for row, each in zip(rows, count([tokens_of(corpus, row) for row in rows]), strict=True):
            begin = int(begins[row])
            fertilities[begin : begin + len(each)] = each
    return fertilities


def linked(weights: NDArray[Any]) -> Ids:
    """[S]: how many target tokens have their largest weight [T, S] at each source token; among equals, near the diagonal."""
    return np.bincount((weights + NEAR * _prior(*weights.shape)).argmax(1), minlength=weights.shape[1])


def _prior(target: int, source: int) -> NDArray[np.float64]:
    """[T, S]: how probable each source position is for each target position before their tokens are known."""
    rows, columns = ((np.arange(count) + 0.5) / count for count in (target, source))
    prior: NDArray[np.float64] = np.exp(-SHARP * np.abs(rows[:, None] - columns[None]))
    return prior
