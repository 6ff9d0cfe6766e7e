"""`weft quality calibrate`: what the estimates of a run mean, learnt on validation data, and how good they are.

Beside a run stand estimates that need no training: the mean log-probability per token by the model that wrote the translations,
if the data has it (`log_probability`), and minus the number of words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.data.formats import is_json, read_records
from weft.errors import ConfigError, DataError
from weft.explain.figures import empty_figure, save_figure
from weft.runs.translator import load
from weft.tasks.pairs.metrics import ranks
from weft.tasks.quality.calibration import (
    CALIBRATION,
    Calibration,
    ReliabilityBin,
    best_threshold,
    calibration_error,
    fit_isotonic,
    reliability,
    worst_found,
)
from weft.tasks.quality.data import split_label
from weft.tasks.quality.labels import OK, words_of
from weft.tasks.quality.metrics import Matthews
from weft.tasks.quality.predictor import Quality
from weft.tasks.quality.task import QualityTask
from weft.tasks.two_texts import split_texts

PICTURE = "reliability.png"
WORST = 0.1


@dataclass(frozen=True)
class Estimates:
    """Translations with their estimated and their true quality. log_probabilities: empty if the data has none."""

    qualities: Sequence[Quality]
    scores: Sequence[float]
    right: Sequence[Sequence[bool]]
    words: Sequence[int]
    log_probabilities: Sequence[float]

    @property
    def word_shares(self) -> list[float]:
        """The estimated probability of OK of all words."""
        return [word.probability for quality in self.qualities for word in quality.words]

    @property
    def words_right(self) -> list[bool]:
        return [good for row in self.right for good in row]


def estimate(run: str | Path, data: Sequence[str], device: str = "auto") -> Estimates:
    """The estimates of a run of the task quality for labelled data."""
    trained = load(run, device=device)
    task = trained.task
    if not isinstance(task, QualityTask):
        raise ConfigError(f"{run}: its task is {trained.config.task['kind']}; name a run of the task quality")
    examples = task.examples(data)
    if not examples:
        raise DataError(f"{', '.join(data)}: there are no translations")
    qualities = list(trained.stream([source for source, _ in examples]))
    labels = [split_label(label) for _, label in examples]
    tags = [[tag == OK for tag in found] for _, found in labels]
    scores = [
        float(score) if score else 100 * sum(each) / max(1, len(each)) for (score, _), each in zip(labels, tags, strict=True)
    ]
    words = [len(words_of(split_texts(source)[1])) for source, _ in examples]
    return Estimates(qualities, scores, tags if qualities[0].words else [], words, _log_probabilities(data))


def _log_probabilities(data: Sequence[str]) -> list[float]:
    if not all(is_json(spec) for spec in data):
        return []
    found = [record.get("log_probability") for spec in data for record, _ in read_records(spec) if isinstance(record, dict)]
    return [float(value) for value in found if value is not None] if None not in found else []


def calibrate(run: str | Path, data: Sequence[str], device: str = "auto") -> Calibration:
    """Learns on validation data what estimates mean, and saves it in the run."""
    found = estimate(run, data, device)
    words, right = found.word_shares, found.words_right
    calibration = Calibration(
        fit_isotonic([quality.score for quality in found.qualities], found.scores),
        fit_isotonic(words, right) if right else None,
        best_threshold(words, right) if right else 0.5,
    )
    calibration.save(Path(run) / CALIBRATION)
    return calibration


def report(found: Estimates) -> dict[str, Any]:
    """Scores of estimates, beside estimates that need no training; plain data."""
    truths = np.array(found.scores) / 100
    estimators: dict[str, Sequence[float]] = {"this run": [quality.score for quality in found.qualities]}
    if found.log_probabilities:
        estimators["log-probability of the translator"] = found.log_probabilities
    estimators["minus the number of words"] = [-float(count) for count in found.words]
    confidence = [quality.confidence for quality in found.qualities]
    document: dict[str, Any] = {
        "translations": len(found.scores),
        "estimators": {name: _strength(values, found.scores) for name, values in estimators.items()},
        "worst_share": WORST,
        "sentences": {
            "error": calibration_error(confidence, truths),
            "error_before": calibration_error(np.clip([quality.score / 100 for quality in found.qualities], 0, 1), truths),
            "bins": _plain(reliability(confidence, truths)),
        },
    }
    if found.right:
        sure = [word.confidence for quality in found.qualities for word in quality.words]
        right, tags = found.words_right, [word.tag == OK for quality in found.qualities for word in quality.words]
        document["words"] = {
            "count": len(right),
            "right": float(np.mean(right)),
            "mcc": _matthews(tags, right),
            "error": calibration_error(sure, right),
            "error_before": calibration_error(found.word_shares, right),
            "bins": _plain(reliability(sure, right)),
        }
    return document


def _strength(values: Sequence[float], truths: Sequence[float]) -> dict[str, float]:
    said, true = np.asarray(values, np.float64), np.asarray(truths, np.float64)
    return {
        "pearson": _correlation(said, true),
        "spearman": _correlation(ranks(said), ranks(true)),
        "worst_found": worst_found(said, true, WORST),
    }


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.corrcoef(x, y)[0, 1]) if x.std() and y.std() else 0.0


def _matthews(said: Sequence[bool], true: Sequence[bool]) -> float:
    ours, theirs = ("\t" + " ".join("OK" if good else "BAD" for good in row) for row in (said, true))
    return Matthews().score(Matthews().count([ours], [theirs])).value / 100


def _plain(bins: Sequence[ReliabilityBin]) -> list[dict[str, float]]:
    return [asdict(each) for each in bins]


def draw_reliability(document: Mapping[str, Any], path: Path) -> None:
    """The reliability picture: in each bin of similar confidence, the mean confidence and what is true."""
    parts = [name for name in ("sentences", "words") if name in document]
    figure = empty_figure(4 * len(parts), 4, 120)
    all_axes = figure.subplots(1, len(parts), squeeze=False)
    truths = {"sentences": "mean sentence chrF / 100", "words": "share of words that are OK"}
    for axes, name in zip(all_axes[0], parts, strict=True):
        bins = document[name]["bins"]
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        axes.plot([each["confidence"] for each in bins], [each["truth"] for each in bins], marker="o")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=f"confidence of {name}", ylabel=truths[name], aspect="equal")
        axes.set_title(f"calibration error {document[name]['error']:.3f}", fontsize=10)
    save_figure(figure, path)
