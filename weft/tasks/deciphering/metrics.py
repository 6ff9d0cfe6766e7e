"""Accuracy of deciphered texts, and how much they look like plain ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.evaluation.metrics import Counts, Metric


def count_pairs(texts: NDArray[np.int64], symbols: int) -> NDArray[np.int64]:
    """How often each symbol [V] is followed by each other one [V] in texts [B, T]."""
    pairs = texts[:, :-1] * symbols + texts[:, 1:]
    return np.bincount(pairs.ravel(), minlength=symbols * symbols).reshape(symbols, symbols)


def divergence(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """The Jensen–Shannon divergence of two distributions, given as counts, in bits: 0 if they are equal, at most 1."""
    first, second = one / max(1, one.sum()), other / max(1, other.sum())
    middle = (first + second) / 2

    def bits(chances: NDArray[np.float64]) -> float:
        some = chances > 0
        return float((chances[some] * np.log2(chances[some] / middle[some])).sum())

    return (bits(first) + bits(second)) / 2


class SymbolAccuracy(Metric):
    """The share of symbols that are right, place by place; places where the reference has `unknown` do not count.

    separator: what stands between symbols; nothing if each character is one.
    """

    name = "accuracy"

    def __init__(self, separator: str, unknown: str) -> None:
        self.separator, self.unknown = separator, unknown

    @property
    def signature(self) -> str:
        return f"symbols:{'words' if self.separator else 'characters'}|unknown:not counted"

    def units(self, text: str) -> Sequence[str]:
        return text.split(self.separator) if self.separator else list(text)

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        rows = []
        for ours, theirs in zip(map(self.units, hypotheses), map(self.units, references), strict=True):
            counted = [n for n, unit in enumerate(theirs) if unit != self.unknown]
            rows.append([sum(n < len(ours) and ours[n] == theirs[n] for n in counted), len(counted)])
        return np.array(rows, np.float64).reshape(-1, 2)
