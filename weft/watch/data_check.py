"""A report on a file of training pairs, before anybody trains on it: how many, how long, and what looks wrong."""

from __future__ import annotations

from itertools import islice
from statistics import fmean
from typing import Any

from weft.data.formats import open_pairs
from weft.errors import DataError

MOST = 200_000
"""Pairs that are read."""

EXAMPLES = 5

FEW = 1000
"""Fewer pairs than these teach a model little."""

RATIO = 3.0
"""Sides whose numbers of words differ by a larger factor are hardly translations."""


def check_data(spec: str) -> dict[str, Any]:
    """Counts, mean lengths, remarks and the first pairs of training data. Raises DataError if it cannot be read."""
    pairs = list(islice(open_pairs(spec), MOST + 1))
    if not pairs:
        raise DataError(f"{spec}: there are no pairs in this data")
    more, pairs = len(pairs) > MOST, pairs[:MOST]
    words = [(len(source.split()), len(target.split())) for source, target in pairs]
    counts = {
        "empty": sum(not (source.strip() and target.strip()) for source, target in pairs),
        "repeated": len(pairs) - len(set(pairs)),
        "copies": sum(source == target for source, target in pairs),
        "uneven": sum(max(each) > RATIO * max(1, min(each)) + RATIO for each in words),
    }
    return {
        "pairs": len(pairs),
        "more": more,
        "words": [fmean(source for source, _ in words), fmean(target for _, target in words)],
        "longest": [max(source for source, _ in words), max(target for _, target in words)],
        **counts,
        "remarks": remarks(len(pairs), counts),
        "examples": [list(pair) for pair in pairs[:EXAMPLES]],
    }


def remarks(pairs: int, counts: dict[str, int]) -> list[str]:
    """Sentences about what may be wrong; none if nothing is."""
    found = []
    if pairs < FEW:
        found.append(f"there are only {pairs:,} pairs; models learn to translate from some ten thousand")
    reasons = {
        "empty": "have an empty side and are left out",
        "repeated": "occur more than once; data.drop_duplicates keeps one of each",
        "copies": "have the same text on both sides, which teaches a model to copy",
        "uneven": "have sides of very different lengths, as if the lines were not aligned",
    }
    for name, reason in reasons.items():
        if counts[name] > (0 if name == "empty" else pairs // 20):
            found.append(f"{counts[name]:,} pairs ({counts[name] / pairs:.1%}) {reason}")
    return found
