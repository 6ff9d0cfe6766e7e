"""Metrics of numbers, such as the relatedness of two texts: correlations in percent, and the mean squared error.

Shapes: N examples · S counts per example.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.errors import DataError
from weft.evaluation.metrics import Counts, Metric


def number_of(text: str) -> float:
    """The number in a text. Raises DataError if there is none, or one that is not finite."""
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise DataError(f"{text.strip()!r} is not a number; for labels, set task.output: label")
    return value


def numbers(texts: Sequence[str]) -> NDArray[np.float64]:
    """The number in each text; a blank one, the output for a blank input, is 0."""
    return np.array([number_of(text) if text.strip() else 0.0 for text in texts], np.float64)


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value from 0 on; equal values share the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ends = sizes.cumsum()
    return (ends - (sizes + 1) / 2)[group]


class Pearson(Metric):
    """Pearson's correlation between numbers and their references, in percent."""

    name = "Pearson"
    signature = "100 · Pearson's r"

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        """[N, 6]: 1, x, y, x², y², xy of centred numbers, with which little precision is lost."""
        return self._moments(numbers(hypotheses), numbers(references))

    def _moments(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> Counts:
        x, y = x - x.mean(), y - y.mean()
        return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)

    def value(self, sums: Counts) -> Counts:
        count, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
        spread = np.sqrt(np.maximum(count * xx - x * x, 0) * np.maximum(count * yy - y * y, 0))
        usable = spread > 1e-12 * np.maximum(count * count, 1)
        return np.where(usable, 100 * (count * xy - x * y) / np.where(usable, spread, 1), 0.0)


class Spearman(Pearson):
    """Spearman's correlation, that of ranks, in percent. Resamples keep the ranks of the whole data."""

    name = "Spearman"
    signature = "100 · Spearman's ρ|ties:mean rank"

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        return self._moments(ranks(numbers(hypotheses)), ranks(numbers(references)))


class MeanSquaredError(Metric):
    """The mean squared difference between numbers and their references."""

    name = "MSE"
    signature = "mean squared error"
    higher_is_better = False

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        return np.stack([(numbers(hypotheses) - numbers(references)) ** 2, np.ones(len(references))], 1)

    def value(self, sums: Counts) -> Counts:
        return sums[..., 0] / np.maximum(sums[..., 1], 1)


NUMBER_METRICS: tuple[type[Metric], ...] = (Pearson, Spearman, MeanSquaredError)
