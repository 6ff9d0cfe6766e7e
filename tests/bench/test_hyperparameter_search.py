"""The search of settings: the space, what is proposed after an interruption, failed trials, and the whole command."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import tiny
from weft.bench import hyperparameter_search
from weft.bench.compare.plan import Comparison, parse_budget, parse_entry
from weft.bench.hyperparameter_search import Dimension, Search, importance, parse_dimension, run_search
from weft.cli import spread_sets
from weft.errors import ConfigError, Interrupted

optuna = pytest.importorskip("optuna")


def test_a_space_is_a_range_or_choices() -> None:
    assert parse_dimension("model.dim=64..256:64") == Dimension("model.dim", (), 64, 256, True, False, 64)
    assert parse_dimension("a.b=1..8") == Dimension("a.b", (), 1, 8, whole=True)
    assert parse_dimension("a.b=1e-4..3e-3:log") == Dimension("a.b", (), 1e-4, 3e-3, log=True)
    assert parse_dimension("a.b=-1.5..0") == Dimension("a.b", (), -1.5, 0)
    assert parse_dimension("a.b=full|{kind: local, window: 8}").choices == ("full", "{kind: local, window: 8}")
    for wrong in ("a.b", "a.b=", "=1..2", "a.b=2..1", "a.b=0..1:log", "a.b=0..1:0", "a.b=full", "a.b=1|1"):
        with pytest.raises(ConfigError, match="--set-space "):
            parse_dimension(wrong)


def test_a_space_is_spread_as_settings_are() -> None:
    given = ["search", "r", "--set-space", "a.b=1..2", "c.d=x|y", "--trials", "3", "--set", "e.f=1", "g.h=2"]
    repeated = ["search", "r", "--set-space", "a.b=1..2", "--set-space", "c.d=x|y", "--trials", "3"]
    repeated += ["--set", "e.f=1", "--set", "g.h=2"]
    assert spread_sets(given) == repeated


SPACE = ("model.dropout=0..0.5", "model.dim=16|32", "train.clip=1..9")


def search(out: Path, trials: int, space: Sequence[str] = SPACE, **options: Any) -> Search:
    data = tiny.generated("reverse", 400), tiny.generated("reverse", 20, "valid")
    given = tiny.sets({"train.validate_bleu": False})[1:]
    sets = tuple(each for each in given if not each.startswith("train.steps="))
    plan = Comparison((parse_entry("transformer-tiny"),), out, parse_budget("4-steps"), (data[0],), (data[1],), (), sets)
    return Search(plan, tuple(map(parse_dimension, space)), trials, by="loss", **options)


class Formula:
    """Scores trials by a formula instead of training them. interrupt_at: the number of the call that is interrupted."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []
        self.interrupt_at = 0

    def __call__(self, search: Search, values: Sequence[str], *_: Any) -> tuple[float, str]:
        self.seen.append(tuple(values))
        if len(self.seen) == self.interrupt_at:
            raise Interrupted("stopped")
        if float(values[2]) >= 8:
            return float("nan"), "it broke"
        return (float(values[0]) - 0.2) ** 2 + (values[1] == "16"), ""


@pytest.fixture
def formula(monkeypatch: pytest.MonkeyPatch) -> Formula:
    found = Formula()
    monkeypatch.setattr(hyperparameter_search, "_train", found)
    return found


def test_an_interrupted_search_proposes_what_a_whole_one_does(tmp_path: Path, formula: Formula) -> None:
    run_search(search(tmp_path / "whole", 14))
    whole = list(formula.seen)
    formula.seen.clear()
    formula.interrupt_at = 5
    with pytest.raises(Interrupted):
        run_search(search(tmp_path / "parts", 14))
    formula.interrupt_at = 0
    run_search(search(tmp_path / "parts", 9))
    document = run_search(search(tmp_path / "parts", 14))
    assert formula.seen[:5] == whole[:5] and formula.seen[5:] == whole[4:], "the interrupted trial continues with its values"
    assert [each["number"] for each in document["trials"]] == list(range(1, 15))


def test_the_best_trial_its_command_and_what_matters_are_reported(tmp_path: Path, formula: Formula) -> None:
    document = run_search(search(tmp_path, 16))
    scores = [each["score"] for each in document["trials"] if each["score"] is not None]
    assert document["best"]["score"] == min(scores) and document["best"]["model.dim"] == "32"
    assert len(scores) == sum(float(values[2]) < 8 for values in formula.seen) < 16, "failed trials have no score"
    assert "--set" in document["command"] and f"model.dropout={document['best']['model.dropout']}" in document["command"]
    assert sum(document["importance"].values()) == pytest.approx(1)
    assert max(document["importance"], key=lambda key: document["importance"][key]) == "model.dim", "it changes most"
    assert (tmp_path / "importance.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "trials.csv").open()))
    assert len(rows) == 16 and rows[0]["model.dim"] in ("16", "32")


def test_importance_is_what_a_setting_explains() -> None:
    space = [parse_dimension(each) for each in ("model.dim=16|32", "model.dropout=0..1", "train.clip=1..9", "train.seed=1..99")]
    right = 0
    for seed in range(20):
        draw = np.random.default_rng(seed)
        trials = []
        for _ in range(24):
            dim, dropout, clip = draw.choice(["16", "32"]), draw.random(), draw.random()
            score = (dim == "16") + abs(dropout - 0.3) + 0.01 * draw.random() + (1e9 if draw.random() < 0.05 else 0)
            values = {"model.dim": dim, "model.dropout": f"{dropout:.6g}", "train.clip": f"{clip:.6g}"}
            trials.append({"score": score, **values, "train.seed": str(len(trials))})
        found = importance(space, trials)
        assert sum(found.values()) == pytest.approx(1) and min(found.values()) >= 0
        right += sorted(found, key=lambda key: -found[key])[:2] == ["model.dim", "model.dropout"]
    assert right >= 15, "also where a trial has diverged"
    assert importance(space, trials[:7]) == {}, "too few trials"
    assert importance(space, [{**each, "score": 1.0} for each in trials]) == {}
    many = parse_dimension("a=" + "|".join(map(str, range(9))))
    assert importance([many], [{"score": n, "a": str(n)} for n in range(9)]) == {}, "one trial for each value tells nothing"


def test_a_search_with_other_settings_does_not_continue(tmp_path: Path, formula: Formula) -> None:
    run_search(search(tmp_path, 1))
    with pytest.raises(ConfigError, match=r"holds a search with another seed, space;.*only --trials may change"):
        run_search(search(tmp_path, 2, SPACE[:2], seed=2))


def test_impossible_searches_are_refused_before_anything_is_trained(tmp_path: Path, formula: Formula) -> None:
    for space, message in (
        ((), "at least one setting"),
        ((SPACE[0], SPACE[0]), "occurs twice"),
        (("model.dropuot=0..1",), "dropout"),
        (("train.steps=1..5",), "--budget sets the length"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_search(search(tmp_path / "run", 2, space))
    assert formula.seen == [] and not (tmp_path / "run").exists()


def test_the_command_searches_and_continues(tmp_path: Path, weft: tiny.Shell) -> None:
    words = ["search", "transformer-tiny", "--set-space", "model.dim=16|32", "--budget", "2-steps", "--by", "loss"]
    words += ["--data", tiny.generated("reverse", 400), "--valid", tiny.generated("reverse", 20, "valid")]
    words += ["--out", str(tmp_path), "--trials", "2", *tiny.sets({"train.validate_bleu": False})]
    words = [word for word in words if not word.startswith(("model.dim=32", "train.steps="))]
    weft(*words)
    assert "best: trial " in weft.err and "weft train transformer-tiny" in weft.err
    first = json.loads((tmp_path / "results.json").read_text())
    assert [each["state"] for each in first["trials"]] == ["complete", "complete"]
    assert len(list((tmp_path / "runs").iterdir())) == len({each["model.dim"] for each in first["trials"]})
    weft(*words)
    assert json.loads((tmp_path / "results.json").read_text()) == first, "nothing is left to do"
