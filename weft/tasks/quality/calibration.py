"""Calibration of estimated quality on data that the model was not trained on, and how good a confidence is.

A confidence is calibrated if, of all sentences with 0.7, the mean chrF is 70, and if of all words with 0.7 the share that is OK
is 70 %.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.file_access import replace_file
from weft.tasks.classification.data import reading

CALIBRATION = "calibration.json"

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class IsotonicCurve:
    """A curve that never falls, through the points (estimates, values), straight between them and level outside."""

    estimates: Sequence[float]
    values: Sequence[float]

    def __call__(self, estimates: Sequence[float] | Numbers) -> Numbers:
        return np.interp(np.asarray(estimates, np.float64), self.estimates, self.values)


def fit_isotonic(estimates: Sequence[float] | Numbers, truths: Sequence[float] | Numbers) -> IsotonicCurve:
    """The curve of least squared error (pool adjacent violators, Ayer et al. 1955), through the middle of each of its steps."""
    order = np.argsort(np.asarray(estimates, np.float64), kind="stable")
    steps: list[tuple[float, float, float]] = []  # the sums of estimates and of truths, and the number of examples
    for estimate, truth in zip(np.asarray(estimates, np.float64)[order], np.asarray(truths, np.float64)[order], strict=True):
        step = (float(estimate), float(truth), 1.0)
        while steps and (steps[-1][1] / steps[-1][2] >= step[1] / step[2] or steps[-1][0] / steps[-1][2] == estimate):
            step = tuple(a + b for a, b in zip(steps.pop(), step, strict=True))  # type: ignore[assignment]
        steps.append(step)
    return IsotonicCurve([total / count for total, _, count in steps], [total / count for _, total, count in steps])


@dataclass(frozen=True)
class Calibration:
    """The meaning of an estimate, learnt on validation data.

    score: from estimated scores to expected ones · words: from estimated probabilities of OK to shares · threshold: words
    whose estimated probability of OK is below it are BAD, which has the highest MCC.
    """

    score: IsotonicCurve | None = None
    words: IsotonicCurve | None = None
    threshold: float = 0.5

    def of_score(self, estimate: float) -> float:
        """The confidence in a translation, from 0 to 1."""
        value = estimate if self.score is None else float(self.score([estimate])[0])
        return min(1.0, max(0.0, value / 100))

    def of_words(self, estimates: Sequence[float]) -> list[float]:
        """The confidence in each word."""
        found: list[float] = list(estimates) if self.words is None else self.words(estimates).tolist()
        return found

    def save(self, path: Path) -> None:
        replace_file(path, json.dumps(asdict(self)) + "\n")

    @staticmethod
    def load(folder: Path) -> Calibration:
        """That of a run; one that changes nothing if the run has none."""
        path = folder / CALIBRATION
        if not path.exists():
            return Calibration()
        with reading(path, "a calibration"):
            found = json.loads(path.read_text(encoding="utf-8"))
            score, words = (found[name] and IsotonicCurve(**found[name]) for name in ("score", "words"))
            return Calibration(score, words, float(found["threshold"]))


def best_threshold(estimates: Sequence[float] | Numbers, right: Sequence[bool] | NDArray[np.bool_]) -> float:
    """The threshold on probabilities of OK below which words are BAD, with the highest MCC."""
    values, true = np.asarray(estimates, np.float64), np.asarray(right, bool)
    order = np.argsort(values, kind="stable")
    values, wrong = values[order], ~true[order]
    hit, said = np.cumsum(wrong)[:-1], np.arange(1, len(values))
    bad, count = wrong.sum(), len(values)
    spread = np.sqrt(said * (count - said) * bad * (count - bad), dtype=np.float64)
    correlation = np.where(spread > 0, (count * hit - said * bad) / np.where(spread > 0, spread, 1), 0.0)
    correlation[values[1:] == values[:-1]] = 0.0  # no threshold lies between equal estimates
    if not len(correlation) or correlation.max() <= 0:
        return 0.5
    best = int(correlation.argmax())
    return float((values[best] + values[best + 1]) / 2)


@dataclass(frozen=True)
class ReliabilityBin:
    """Examples of similar confidence: their number, their mean confidence, and the mean of what is true."""

    count: int
    confidence: float
    truth: float


def reliability(
    confidence: Sequence[float] | Numbers, truths: Sequence[float] | Numbers, bins: int = 10
) -> list[ReliabilityBin]:
    """Bins of equally many examples each, by confidence. truths: from 0 to 1."""
    said, true = np.asarray(confidence, np.float64), np.asarray(truths, np.float64)
    order = np.argsort(said, kind="stable")
    cuts = np.linspace(0, len(order), bins + 1).astype(int)
    parts = [order[begin:end] for begin, end in pairwise(cuts) if end > begin]
    return [ReliabilityBin(len(part), float(said[part].mean()), float(true[part].mean())) for part in parts]


def calibration_error(confidence: Sequence[float] | Numbers, truths: Sequence[float] | Numbers, bins: int = 10) -> float:
    """The expected calibration error: the mean distance of confidence and truth over the bins, by their sizes."""
    found = reliability(confidence, truths, bins)
    return sum(each.count * abs(each.confidence - each.truth) for each in found) / max(1, sum(each.count for each in found))


def worst_found(estimates: Sequence[float] | Numbers, truths: Sequence[float] | Numbers, share: float = 0.1) -> float:
    """The share of the worst examples, by default the worst tenth, that are among as many with the lowest estimates."""
    count = max(1, round(share * len(truths)))
    worst, said = (set(np.argsort(np.asarray(each), kind="stable")[:count].tolist()) for each in (truths, estimates))
    return len(worst & said) / count
