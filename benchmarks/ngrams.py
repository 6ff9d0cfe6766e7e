"""N-gram language models with modified Kneser–Ney smoothing, as floors for neural language models.

Chen & Goodman 1999, section 3: the interpolated form with three discounts per order. Counts are arrays, so a million tokens
take seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

LEAST = 0.05


def ngram_losses(train: Sequence[int] | Ids, test: Sequence[int] | Ids, vocabulary: int, order: int) -> list[float]:
    """Nats per test token of the models of order 1 to `order`. Tokens are ids below `vocabulary`."""
    stream = np.concatenate([np.asarray(train, np.int64), np.asarray(test, np.int64)])
    known, losses = len(train), []
    grams = [np.zeros(len(stream) + 1, np.int64), *_number_grams(stream, order + 1)]
    lower: Floats = np.full(len(stream), 1 / vocabulary)
    for n in range(1, order + 1):
        contexts = np.concatenate([[0], grams[n - 1][:-1]]) if n > 1 else np.zeros(len(stream), np.int64)
        first = _first_places(grams[n][:known], n)
        raw = np.bincount(grams[n][n - 1 : known], minlength=grams[n].max() + 1)
        losses.append(-float(np.log(_interpolate(raw, grams[n], contexts, first, lower)[known:]).mean()))
        # A lower order counts the different tokens that a gram follows, not how often it occurs.
        longer = _first_places(grams[n + 1][:known], n + 1)
        continued = np.bincount(grams[n][longer], minlength=grams[n].max() + 1)
        lower = _interpolate(continued, grams[n], contexts, first, lower)
    return losses


def _number_grams(stream: Ids, order: int) -> list[Ids]:
    """For n = 1 … order: a number for the n-gram that ends at each place, if there is one."""
    grams = [stream]
    for _ in range(order - 1):
        before = np.concatenate([[-1], grams[-1][:-1]])
        grams.append(np.unique((before + 1) * (stream.max() + 1) + stream, return_inverse=True)[1].astype(np.int64))
    return grams


def _first_places(grams: Ids, n: int) -> Ids:
    """One place of each different n-gram. The first n − 1 places have none."""
    return n - 1 + np.unique(grams[n - 1 :], return_index=True)[1]


def _interpolate(counts: Ids, grams: Ids, contexts: Ids, first: Ids, lower: Floats) -> Floats:
    """p(w | context) at every place: (c − D(c)) / Σ c + γ(context) · p(w | shorter context); equations 20 to 26."""
    discounts = np.minimum(_discounts(counts)[np.minimum(counts, 3)], counts)
    owners, size = contexts[first], contexts.max() + 1
    total = np.bincount(owners, counts[grams[first]], size)[contexts]
    held_back = np.bincount(owners, discounts[grams[first]], size)[contexts]
    seen = np.maximum(total, 1)
    return np.where(total > 0, (counts - discounts)[grams] / seen + held_back / seen * lower, lower)


def _discounts(counts: Ids) -> Floats:
    """[4]: what is taken from counts of 0, 1, 2, and 3 or more; at least `LEAST`, so that nothing is impossible."""
    n1, n2, n3, n4 = (max(1, int((counts == times).sum())) for times in (1, 2, 3, 4))
    share = n1 / (n1 + 2 * n2)
    found = (1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3)
    return np.array([0.0, *(max(LEAST, discount) for discount in found)])
