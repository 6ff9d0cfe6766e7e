"""Dual conditional cross-entropy (Junczys-Dowmunt 2018): two models of opposite directions score how likely pairs are.

The score of a pair is |H(t|s) − H(s|t)| + (H(t|s) + H(s|t)) / 2, with cross-entropies per token: low if both models find the
pair likely, and equally so. A pair is unlikely if its score is above that of most pairs that other filters keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from weft.data.batch import EOS, Layout, Source, pad
from weft.data.formats import Texts
from weft.errors import ConfigError
from weft.losses.log_likelihood import text_log_likelihoods
from weft.runs.translator import load
from weft.tasks.translation.predictor import TranslationPredictor

CELLS = 1 << 13
"""Tokens of a batch, with padding."""

CUT = 256
"""Tokens of a text that are scored."""


class CrossEntropyFilter:
    """Finds unlikely pairs. share: of the clean pairs, those with the highest scores that it would leave out."""

    def __init__(self, forward: str | Path, backward: str | Path, share: float, device: str = "auto") -> None:
        runs = [load([str(run)], device=device) for run in (forward, backward)]
        self.predictors = [run.translation_predictor("cross-entropy") for run in runs]
        for run, predictor in zip((forward, backward), self.predictors, strict=True):
            if predictor.model.decoder.parallel:
                raise ConfigError(f"{run}: a model that writes all tokens at once has no cross-entropies; name another run")
        self.share, self.threshold = share, float("inf")

    def calibrated(self, clean: Texts) -> CrossEntropyFilter:
        """Sets the threshold by the scores of clean pairs."""
        scores = self.scores(clean)
        self.threshold = float(np.quantile(scores, 1 - self.share)) if scores else float("inf")
        return self

    def __call__(self, pairs: Texts) -> list[bool]:
        return [score > self.threshold for score in self.scores(pairs)]

    def scores(self, pairs: Texts) -> list[float]:
        """The score of each pair; the lower, the likelier."""
        forward, backward = self.predictors
        one, other = cross_entropies(forward, pairs), cross_entropies(backward, [(target, source) for source, target in pairs])
        return [abs(a - b) + (a + b) / 2 for a, b in zip(one, other, strict=True)]


@torch.inference_mode()
def cross_entropies(predictor: TranslationPredictor, pairs: Texts) -> list[float]:
    """The cross-entropy of each target given its source, in nats per token, EOS included."""
    model, most = predictor.model, min(CUT, predictor.model.max_target or CUT)
    rows = [
        ([*source[: most - 1], EOS], [*target[: most - 1], EOS])
        for source, target in zip(
            predictor.source.encode_batch([source for source, _ in pairs]),
            predictor.target.encode_batch([target for _, target in pairs]),
            strict=True,
        )
    ]
    found = [0.0] * len(rows)
    with predictor.arithmetic():
        for places in _batches(rows):
            sources = [rows[place][0] for place in places]
            layout = Layout.padded([len(source) for source in sources])
            encoded = model.encode(Source(pad(sources), layout).to(model.device))
            targets = [rows[place][1] for place in places]
            for place, score in zip(places, text_log_likelihoods(model.decoder, encoded, targets).sum(1).tolist(), strict=True):
                found[place] = -score / len(rows[place][1])
    return found


def _batches(rows: Sequence[tuple[list[int], list[int]]]) -> Iterator[list[int]]:
    """The places of all rows, in batches of similar lengths."""
    order = iter(sorted(range(len(rows)), key=lambda place: max(map(len, rows[place]))))
    for first in order:
        longest = max(map(len, rows[first]))
        yield [first, *islice(order, max(0, CELLS // (2 * longest) - 1))]
