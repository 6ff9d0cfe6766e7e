"""Checks data before anything is trained on it: what it is, its languages and lengths, and every finding with examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from weft.data.cleaning.clean import Findings, test_sentences
from weft.data.cleaning.filters import Choices, PairChecker, Repairs
from weft.data.cleaning.learnt_statistics import LearntStatistics
from weft.data.formats import Pairs
from weft.errors import DataError

STRICT: dict[str, Any] = {
    "repairs": dict.fromkeys(Repairs.model_fields, False),
    "filters": {"placeholders": {"share": 1.0}, "identical": {"letters": 1}},
}
"""Choices that find everything worth a look, also what cleaning keeps."""

PERCENTILES = (5, 50, 95, 100)
LONGEST = 1000
"""Words of texts that are counted by their length; longer ones count as this long."""

STRETCH, END = 8.0, 4.0
"""Sum of evidence from which on pairs are a misaligned stretch, and how far it has to fall for the stretch to end."""

CLEAR = 3.0
"""Log-likelihood ratio of a pair that is as clear as any; evidence is at most 1 for a stretch, and 1.5 against it."""

STRETCHES = 50
"""Misaligned stretches that are listed."""


class StretchFinder:
    """Finds stretches of misaligned pairs by a cumulative sum of evidence (Page, 1954): where it rises, and until it falls."""

    def __init__(self) -> None:
        self.stretches: list[tuple[int, int]] = []
        self._sum = self._highest = 0.0
        self._start = self._end = 0

    def add(self, number: int, score: float) -> None:
        """Reads the pair with this number, and its log-likelihood ratio of being true."""
        if self._sum <= 0:
            self._start, self._highest = number, 0.0
        self._sum = max(0.0, self._sum + min(1.0, max(-1.5, -score / CLEAR)))
        if self._sum > self._highest:
            self._highest, self._end = self._sum, number
        if self._sum < self._highest - END or self._sum == 0:
            self.finish()

    def finish(self) -> None:
        """Ends the stretch that was being read."""
        if self._highest >= STRETCH and len(self.stretches) < STRETCHES:
            self.stretches.append((self._start, self._end))
        self._sum = self._highest = 0.0


@dataclass
class _Lengths:
    """The lengths of the texts of one side, in words."""

    counts: list[int] = field(default_factory=lambda: [0] * (LONGEST + 1))

    def add(self, words: float) -> None:
        self.counts[min(LONGEST, round(words))] += 1

    def percentiles(self) -> dict[str, int]:
        shares = np.cumsum(self.counts) / max(1, sum(self.counts))
        return {str(percent): int(np.searchsorted(shares, percent / 100 - 1e-12)) for percent in PERCENTILES}


def check(
    data: Sequence[Pairs],
    languages: tuple[str | None, str | None] = (None, None),
    test: Sequence[Pairs] = (),
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The report of data as plain data: facts, and counts and examples of findings. Nothing is changed."""
    learnt = LearntStatistics(chain.from_iterable(data), languages)
    if not learnt.total:
        raise DataError("there are no pairs to check")
    checker = PairChecker(Choices(STRICT), learnt, test_sentences(test))
    findings, lengths, stretches = Findings(), (_Lengths(), _Lengths()), StretchFinder()
    flawed = 0
    for number, pair in enumerate(chain.from_iterable(data), start=1):
        candidate = checker.repaired(*pair)
        found = checker.flaws(candidate)
        for name in found:
            findings.add(name, *pair)
        flawed += bool(found)
        stretches.add(number, learnt.lexicon.score(*pair))
        for side, words in zip(lengths, candidate.word_counts):
            side.add(words)
        advance()
    stretches.finish()
    return {
        "data": [{"name": pairs.name, "format": type(pairs).__name__, "left_out": dict(pairs.left_out)} for pairs in data],
        "pairs": learnt.total,
        "found": flawed,
        "languages": [
            {"given": language.given, "labels": {label: round(share, 4) for label, share in language.shares.items()}}
            for language in learnt.languages
        ],
        "words": [side.percentiles() for side in lengths],
        "counts": dict(findings.counts),
        "examples": {name: [[source, target] for _, source, target in kept] for name, kept in findings.examples.items()},
        "misaligned_stretches": stretches.stretches,
    }
