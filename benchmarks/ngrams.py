"""Losses of n-gram language models with modified Kneser–Ney smoothing, as floors for neural language models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.data.phrases.ngram_language_model import Ids, NgramModel, contexts_of


def ngram_losses(train: Sequence[int] | Ids, test: Sequence[int] | Ids, vocabulary: int, order: int) -> list[float]:
    """Nats per test token of the models of order 1 to `order`. Tokens are ids below `vocabulary`; the test comes next."""
    stream = np.concatenate([np.asarray(train, np.int64), np.asarray(test, np.int64)])
    losses = []
    for n in range(1, order + 1):
        model = NgramModel([train], vocabulary, n, marked=False)
        before = contexts_of(stream, n - 1, model.start)[len(train) :]
        losses.append(-float(model.log_probs(before, stream[len(train) :]).mean()))
    return losses
