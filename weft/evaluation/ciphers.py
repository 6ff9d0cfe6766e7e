"""Accuracy of deciphered texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.evaluation.metrics import Counts, Metric


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

    def value(self, sums: Counts) -> Counts:
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)
