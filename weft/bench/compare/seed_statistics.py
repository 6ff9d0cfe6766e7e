"""Means over seeds and their confidence intervals.

A `Stat` summarises the trainings of an entry with different seeds: {"mean", "low", "high", "values"}. low and high bound the
95 % confidence interval of the mean by Student's t, which assumes roughly normal scores; with one training they are None.

Which entries of a comparison differ by more than the noise between seeds.

Two or three trainings say little about the spread of one entry, so the spread is pooled over all entries, which assumes that it
is equal for all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Stat = dict[str, Any]

# fmt: off
QUANTILES = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
             2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086]
# fmt: on
"""97.5 % quantiles of Student's t for 1, 2, … degrees of freedom."""


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with `freedom` degrees of freedom."""
    if freedom <= len(QUANTILES):
        return QUANTILES[freedom - 1]
    normal = statistics.NormalDist().inv_cdf(0.975)
    # Beyond the table, the first term of the expansion in 1 / freedom is accurate to the third digit.
    return normal + (normal**3 + normal) / (4 * freedom)


def mean_with_interval(values: Iterable[float | None]) -> Stat | None:
    """Mean and interval of the values that are not None; None if there are none."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    low, high = interval(known) or (None, None)
    return {"mean": statistics.fmean(known), "low": low, "high": high, "values": known}


pass

Rank = tuple[int, int]


def pooled_spread(stats: Sequence[Stat]) -> tuple[float, int] | None:
    """The standard deviation of one training and its degrees of freedom; None if no entry has several seeds."""
    several = [each["values"] for each in stats if len(each["values"]) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return None
    return math.sqrt(sum(statistics.variance(values) * (len(values) - 1) for values in several) / freedom), freedom


def ranks(stats: Sequence[Stat], *, higher_is_better: bool) -> list[Rank] | None:
    """The best and the worst rank that noise allows each entry: behind all that are better, ahead of all that are worse.

    One entry is better than another if the difference of their means exceeds its 95 % interval by Student's t with the pooled
    spread. None if no entry has several seeds.
    """
    found = pooled_spread(stats)
    if found is None:
        return None
    spread, freedom = found

    def better(one: Stat, other: Stat) -> bool:
        least = student(freedom) * spread * math.sqrt(1 / len(one["values"]) + 1 / len(other["values"]))
        difference: float = one["mean"] - other["mean"]
        return (difference if higher_is_better else -difference) > least

    return [
        (1 + sum(better(other, each) for other in stats), len(stats) - sum(better(each, other) for other in stats))
        for each in stats
    ]
