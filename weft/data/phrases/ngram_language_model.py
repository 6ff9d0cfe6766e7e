"""N-gram language models with modified Kneser–Ney smoothing (Chen & Goodman 1999, section 3, the interpolated form).

Each order has three discounts. Counts and probabilities are sorted arrays, so a million tokens take seconds.

Shapes: N tokens that are scored · n order of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.array_files import read_arrays
from weft.errors import RunError
from weft.file_access import MALFORMED, replacing_file

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

NOTHING = -1
"""Stands where there is no earlier token, and for a context that was never seen."""
LEAST = 0.05


@dataclass(frozen=True)
class _Order:
    """The n-grams of one length: the n − 1 tokens before a token are its context.

    contexts: sorted keys of contexts, (number of the context without its first token) · (vocabulary + 1) + first token ·
    grams: sorted keys, (number of the context) · vocabulary + token · probabilities: of each gram · backoff: of each context,
    the weight of the context without its first token.
    """

    contexts: Ids
    grams: Ids
    probabilities: Floats
    backoff: Floats


class NgramModel:
    """p(token | tokens before it) over ids below `vocabulary`. Texts begin with n − 1 marks that are never predicted.

    texts: ids, with the token that ends a text if it is to be predicted.
    """

    def __init__(self, texts: Sequence[Sequence[int] | Ids], vocabulary: int, order: int, *, marked: bool = True) -> None:
        """marked: whether texts begin with marks; otherwise their first tokens have no context, as in a part of a stream."""
        self.vocabulary, self.order = vocabulary, order
        self.start = vocabulary if marked else NOTHING
        parts = [contexts_of(np.asarray(text, np.int64), order - 1, self.start) for text in texts]
        tokens = np.concatenate([np.asarray(text, np.int64) for text in texts])
        self._orders = self._count(np.concatenate(parts), tokens)

    def _count(self, before: Ids, tokens: Ids) -> list[_Order]:
        """The n-grams of each length, shortest first. before: [N, n − 1], the nearest token first."""
        nodes, keys, grams, raw = np.zeros(len(tokens), np.int64), [np.zeros(1, np.int64)], [], []
        for n in range(1, self.order + 1):
            if n > 1:
                seen = (nodes >= 0) & (before[:, n - 2] >= 0)
                found, place = np.unique(self._context_keys(nodes, before[:, n - 2])[seen], return_inverse=True)
                keys.append(found)
                nodes = np.full(len(tokens), NOTHING)
                nodes[seen] = place
            found, counts = np.unique((nodes * self.vocabulary + tokens)[nodes >= 0], return_counts=True)
            grams.append(found)
            raw.append(counts)
        orders: list[_Order] = []
        for n in range(1, self.order + 1):
            counts = raw[-1] if n == self.order else self._continuations(grams[n - 1], grams[n], keys[n])
            orders.append(self._smoothed(keys[n - 1], grams[n - 1], counts, orders))
        return orders

    def _context_keys(self, nodes: Ids, earlier: Ids) -> Ids:
        return nodes * (self.vocabulary + 1) + earlier

    def _continuations(self, grams: Ids, longer: Ids, keys: Ids) -> Ids:
        """The number of different tokens that each gram follows, instead of how often it occurs: equation 24."""
        contexts, tokens = np.divmod(longer, self.vocabulary)
        shorter = keys[contexts] // (self.vocabulary + 1) * self.vocabulary + tokens
        return np.bincount(np.searchsorted(grams, shorter), minlength=len(grams))

    def _smoothed(self, keys: Ids, grams: Ids, counts: Ids, lower: Sequence[_Order]) -> _Order:
        """p(w | context) = (c − D(c)) / Σ c + γ(context) · p(w | shorter context); equations 20 to 26."""
        contexts, tokens = np.divmod(grams, self.vocabulary)
        discounts = np.minimum(_discounts(counts)[np.minimum(counts, 3)], counts)
        total = np.maximum(np.bincount(contexts, counts, len(keys)), 1)
        held = np.bincount(contexts, discounts, len(keys))
        backoff = np.where(held > 0, held / total, 1.0)
        parents = keys // (self.vocabulary + 1)
        shorter = np.full(len(grams), 1 / self.vocabulary)
        if lower:
            shorter = lower[-1].probabilities[np.searchsorted(lower[-1].grams, parents[contexts] * self.vocabulary + tokens)]
        return _Order(keys, grams, (counts - discounts) / total[contexts] + backoff[contexts] * shorter, backoff)

    def log_probs(self, before: Ids, tokens: Ids) -> Floats:
        """[N]: log p of each token. before: [N, n − 1] tokens before it, the nearest one first, `start` before the first."""
        nodes, found = np.zeros(len(tokens), np.int64), np.full(len(tokens), 1 / self.vocabulary)
        for n, order in enumerate(self._orders):
            if n:
                earlier = before[:, n - 1]
                nodes = _number(order.contexts, self._context_keys(nodes, earlier), (nodes >= 0) & (earlier >= 0))
            known = nodes >= 0
            place = _number(order.grams, nodes * self.vocabulary + tokens, known)
            found = np.where(known, found * order.backoff[nodes], found)
            found = np.where(place >= 0, order.probabilities[place], found)
        return np.log(found)

    def save(self, file: Path) -> None:
        """Writes the file that `load` reads."""
        arrays = {f"{name}{n}": array for n, order in enumerate(self._orders) for name, array in vars(order).items()}
        with replacing_file(file) as out:
            np.savez_compressed(out, shape=[self.vocabulary, self.order, self.start], **arrays)

    @classmethod
    def load(cls, file: Path) -> NgramModel:
        """Reads what `save` wrote. Raises RunError for another file."""
        model = cls.__new__(cls)
        saved = read_arrays(file)
        try:
            model.vocabulary, model.order, model.start = (int(number) for number in saved["shape"].tolist())
            names = [each.name for each in fields(_Order)]
            model._orders = [_Order(*(saved[f"{name}{n}"] for name in names)) for n in range(model.order)]
        except MALFORMED as error:
            raise RunError(f"{file}: this is no language model of n-grams: {error}") from None
        return model

    def text_log_probs(self, text: Sequence[int] | Ids) -> Floats:
        """log p of each token of one text."""
        tokens = np.asarray(text, np.int64)
        return self.log_probs(contexts_of(tokens, self.order - 1, self.start), tokens)


def contexts_of(tokens: Ids, width: int, start: int) -> Ids:
    """[N, width]: the tokens before each one, the nearest first; `start` where there is none."""
    padded = np.concatenate([np.full(width, start, np.int64), tokens])
    return padded[width + np.arange(len(tokens))[:, None] - np.arange(1, width + 1)]


def _number(keys: Ids, wanted: Ids, asked: NDArray[np.bool_]) -> Ids:
    """The place of each wanted key among sorted keys; `NOTHING` for those that are not there or not asked for."""
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(asked & (keys[place] == wanted), place, NOTHING)


def _discounts(counts: Ids) -> Floats:
    """[4]: what is taken from counts of 0, 1, 2, and 3 or more; at least `LEAST`, so that nothing is impossible."""
    n1, n2, n3, n4 = (max(1, int((counts == times).sum())) for times in (1, 2, 3, 4))
    share = n1 / (n1 + 2 * n2)
    found = (1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3)
    return np.array([0.0, *(max(LEAST, discount) for discount in found)])
