"""The slope of a quantity over time with its standard error, for campaigns of hours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Slope:
    """A change per hour, its standard error, and the number of points that it was fitted to."""

    per_hour: float
    error: float
    points: int

    def __str__(self) -> str:
        return f"{self.per_hour:+.2f} ± {self.error:.2f} per hour ({self.points} points)"


def slope(hours: Sequence[float], values: Sequence[float]) -> Slope | None:
    """The line of least squares; None with fewer than 8 points.

    Neighbouring points resemble each other, so the usual error is too small: it is multiplied by √((1 + r) / (1 − r)), where r
    is the correlation of neighbouring residuals, if that is positive.
    """
    count = len(hours)
    if count < 8:
        return None
    x0, y0 = sum(hours) / count, sum(values) / count
    spread = sum((x - x0) ** 2 for x in hours)
    found = sum((x - x0) * (y - y0) for x, y in zip(hours, values, strict=True)) / spread
    rest = [y - y0 - found * (x - x0) for x, y in zip(hours, values, strict=True)]
    squares = sum(each**2 for each in rest)
    alike = sum(a * b for a, b in pairwise(rest)) / squares if squares else 0.0
    r = min(max(alike, 0.0), 0.99)
    return Slope(found, math.sqrt(squares / (count - 2) / spread * (1 + r) / (1 - r)), count)


def pooled(slopes: Sequence[Slope]) -> Slope | None:
    """The mean of slopes, each weighted by the inverse of its squared error; None if there are none."""
    known = [each for each in slopes if each.error > 0]
    if not known:
        return slopes[0] if slopes else None
    weights = [each.error**-2 for each in known]
    mean = sum(weight * each.per_hour for weight, each in zip(weights, known, strict=True)) / sum(weights)
    return Slope(mean, sum(weights) ** -0.5, sum(each.points for each in known))
