"""Which entries of a comparison differ by more than the noise between seeds.

Two or three trainings say little about the spread of one entry, so the spread is pooled over all entries, which assumes that it
is equal for all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from weft.compare.stat import Stat, student

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
