"""Calibration: isotonic curves, thresholds of highest MCC, calibration errors and the worst translations that are found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import labelled_translations, tiny
from weft.errors import ConfigError, RunError
from weft.runs.quality_calibration import calibrate, estimate, report
from weft.runs.translator import load
from weft.tasks.quality.calibration import (
    CALIBRATION,
    Calibration,
    best_threshold,
    calibration_error,
    fit_isotonic,
    reliability,
    worst_found,
)


def isotonic(truths: np.ndarray) -> list[float]:
    """The monotone fit of least squares by its min-max formula: maxᵢ≤ₖ minⱼ≥ₖ mean(i…j)."""
    n = len(truths)
    return [max(min(truths[i : j + 1].mean() for j in range(k, n)) for i in range(k + 1)) for k in range(n)]


def test_the_curve_is_the_monotone_fit_of_least_squares() -> None:
    random = np.random.default_rng(1)
    for _ in range(30):
        estimates, truths = np.sort(random.random(12)), random.random(12)
        curve, expected = fit_isotonic(estimates, truths), isotonic(truths)
        assert list(curve.values) == pytest.approx(list(dict.fromkeys(round(each, 12) for each in expected)))
        found = curve(np.linspace(-1, 2, 50))
        assert (np.diff(found) >= 0).all() and found[0] == curve.values[0] and found[-1] == curve.values[-1]
    assert fit_isotonic([1, 1, 2], [0, 1, 1])([1.0]).tolist() == [0.5]  # equal estimates have one value


def test_the_threshold_has_the_highest_mcc() -> None:
    random = np.random.default_rng(2)
    for _ in range(30):
        shares = np.round(random.random(15), 1)
        right = random.random(15) < shares

        def mcc(threshold: float, shares: np.ndarray = shares, right: np.ndarray = right) -> float:
            said = shares >= threshold
            return 0.0 if said.all() or not said.any() or right.all() or not right.any() else np.corrcoef(said, right)[0, 1]

        found = best_threshold(shares, right)
        assert mcc(found) == pytest.approx(max(0.0, *(mcc(each) for each in np.arange(-0.05, 1.1, 0.1))))
    assert best_threshold([0.2, 0.3], [True, True]) == 0.5


def test_errors_and_bins_are_their_definitions() -> None:
    confidence, truths = [0.1, 0.2, 0.7, 0.9], [0.0, 0.0, 1.0, 0.0]
    first, second = reliability(confidence, truths, bins=2)
    assert (first.count, first.confidence, first.truth) == (2, pytest.approx(0.15), 0)
    assert (second.confidence, second.truth) == (pytest.approx(0.8), 0.5)
    assert calibration_error(confidence, truths, bins=2) == pytest.approx((0.15 + 0.3) / 2)
    assert worst_found([1, 2, 3, 4], [10, 40, 20, 30], share=0.5) == 0.5
    assert worst_found([1, 2, 3, 4], [1, 2, 3, 4]) == 1


def test_a_calibration_is_saved_and_read(tmp_path: Path) -> None:
    assert Calibration.load(tmp_path) == Calibration()
    assert Calibration().of_score(120) == 1 and Calibration().of_words([0.3]) == [0.3]
    calibration = Calibration(fit_isotonic([10, 90], [30, 60]), None, 0.25)
    calibration.save(tmp_path / CALIBRATION)
    read = Calibration.load(tmp_path)
    assert read.of_score(50) == pytest.approx(0.45) and read.threshold == 0.25 and read.words is None
    (tmp_path / CALIBRATION).write_text("[]")
    with pytest.raises(RunError, match="does not hold a calibration"):
        Calibration.load(tmp_path)


def test_a_calibrated_run_says_what_its_estimates_mean(tmp_path: Path, weft: tiny.Shell) -> None:
    """The scores of the validation data are half of those of training, and the run learns that."""
    from weft import train

    data = labelled_translations.write(tmp_path / "train.jsonl", 300)
    train("transformer-tiny", data=data, out=tmp_path / "run", set={**labelled_translations.SETTINGS, "train.steps": 60})
    valid = tmp_path / "valid.jsonl"
    rows = [{**each, "score": each["score"] / 2, "log_probability": -1.0} for each in labelled_translations.records(200, 3)]
    valid.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = report(estimate(tmp_path / "run", [str(valid)]))["sentences"]["error"]
    out = weft("quality", "calibrate", tmp_path / "run", "--data", valid, "--json")
    document = json.loads(out)
    assert document["sentences"]["error"] < before / 3
    assert document["sentences"]["error_before"] == pytest.approx(before)
    assert [*document["estimators"]] == ["this run", "log-probability of the translator", "minus the number of words"]
    assert document["estimators"]["log-probability of the translator"]["pearson"] == 0
    assert document["words"]["error"] <= document["words"]["error_before"] + 1e-9
    assert (tmp_path / "run" / "reliability.png").read_bytes().startswith(b"\x89PNG")
    quality = load(tmp_path / "run", device="cpu").translate("red green\trot gruen")
    assert quality.confidence < 0.55 and quality.confidence == pytest.approx(
        Calibration.load(tmp_path / "run").of_score(quality.score)
    )
    assert "MCC" in weft("quality", "calibrate", tmp_path / "run", "--data", valid)


def test_only_runs_of_the_task_are_calibrated(tmp_path: Path) -> None:
    tiny.train(tmp_path / "run", settings={"train.steps": 1})
    with pytest.raises(ConfigError, match="its task is translation; name a run of the task quality"):
        calibrate(tmp_path / "run", [])
