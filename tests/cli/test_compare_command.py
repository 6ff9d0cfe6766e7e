"""`weft compare` from the command line to its report: entries that fail, seeds, budgets of time, stopping and going on."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny
from weft import cli
from weft.bench.compare import training_jobs
from weft.bench.compare.training_jobs import Failure, Processes, Stopped, reason
from weft.training.auto import speed_probe as speed
from weft.training.checkpoint import steps

DATA = ["--data", tiny.generated("reverse", 500), "--valid", tiny.generated("reverse", 40, "valid")]
FAST = ["--lengths", "16,32", "--sentences", "12"]
KINDS = ["--slot", "model.encoder_self", "--kinds", "full,{kind: local, window: 2}"]


def settings(**more: Any) -> list[str]:
    """The settings of tiny runs, without those that a comparison decides."""
    found = tiny.sets({"train.log_every": 5, **{key.replace("__", "."): value for key, value in more.items()}})
    decided = ("train.steps=", "train.validate_every=", "train.keep_last=", "train.tensorboard=")
    return [word for word in found if not word.startswith(decided)]


def results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Commands run in this process, which saves loading torch each time. Gives the names of those that were begun."""
    names: list[str] = []

    def here(self: Processes, name: str, words: Sequence[str], module: str = "weft") -> str:
        if time.monotonic() >= self.until:
            raise Stopped("not begun")
        names.append(name)
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        with log.open("w") as said, contextlib.redirect_stderr(said):
            status = training_jobs.main(words[0]) or 0 if module == "weft.bench.compare.training_jobs" else cli.run(list(words))
        if status:
            raise Failure(reason(log))
        return ""

    monkeypatch.setattr(Processes, "__call__", here)
    return names


def test_entries_are_trained_measured_and_reported_and_one_that_fails_stops_no_other(
    weft: tiny.Shell, tmp_path: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    entries = ["transformer-tiny", "transformer-tiny,label=near,model.encoder_self={kind: local, window: 2}"]
    bad = "transformer-tiny,label=bad,model.decoder_self=linformer"
    arguments = ["compare", *entries, bad, *DATA, *FAST, "--budget", "12-steps", "--repeat", "2", "--out", out, *settings()]
    said = weft.fails(*arguments, says=["2 of 6 trainings failed", "bad, seed 1: ", "does not support causal use"])
    assert "trained near, seed 2" in said and "report.html" in said
    assert re.search(r"near .* ± ", weft.out) and re.search(r"bad +│ +failed", weft.out)

    found = results(out)
    rows = {row["label"]: row for row in found["entries"]}
    assert list(rows)[-1] == "bad" and rows["bad"]["quality"] is None
    best, second = (row["quality"]["mean"] for row in found["entries"][:2])
    assert best >= second
    assert found["headline"]["title"] == "BLEU" and found["counts"] == "target tokens"
    for label in ("transformer-tiny", "near"):
        row = rows[label]
        assert row["quality"]["low"] <= row["quality"]["mean"] <= row["quality"]["high"]
        assert len(row["quality"]["values"]) == 2 and [run["seed"] for run in row["runs"]] == [1, 2]
        assert row["parameters"] > 1000 and row["speed"]["mean"] > 0 and row["decoding"] > 0
        assert row["memory"]["mean"] > 10_000_000 and row["steps"]["values"] == [12, 12]
        assert row["growth"]["lengths"] == [16, 32] and row["growth"]["memory"] > 0.5
        assert {view["title"] for view in row["views"]} == {"encoder", "cross", "decoder"}
    assert [line["entry"] for line in csv.DictReader((out / "table.csv").open())] == list(rows)
    page = (out / "report.html").read_text()
    assert "near" in page and "does not support causal use" in page and "http" not in re.sub(r'"data:[^"]*"', "", page)
    assert (out / "chart.png").stat().st_size > 1000 and (out / "chart.svg").read_text().count("<svg") == 1

    before = begun[:]
    weft.fails(*arguments, says=["2 of 6 trainings failed"])
    assert [name.startswith("transformer-tiny-label") or "linformer" in name for name in begun[len(before) :]] == [True, True]
    again = results(out)
    assert [row["quality"] for row in again["entries"]] == [row["quality"] for row in found["entries"]]


def test_a_comparison_goes_on_where_it_was_stopped(weft: tiny.Shell, tmp_path: Path, begun: list[str]) -> None:
    """Really stopped in the first training, by Ctrl-C, which saves it; then gone on with."""
    out = tmp_path / "out"
    arguments = ["compare", "transformer-tiny", *KINDS, *DATA, *FAST, "--budget", "60-steps", "--out", str(out)]
    arguments += settings(train__log_every=1)
    process = subprocess.Popen(
        [sys.executable, "-m", "weft", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while not (logs := [log for log in out.glob("runs/*/log.jsonl") if log.read_text().count("\n") >= 10]):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "run the same command again" in said and "Traceback" not in said
    run = logs[0].parent
    [stopped] = steps(run)
    assert 10 <= stopped < 60
    assert results(out)["headline"]["title"] == "BLEU", "although nothing is measured yet"
    so_far = {row["label"]: row["error"] for row in results(out)["entries"]}
    assert re.search(r"stopped after step \d+", so_far["full"]) and "not started" in so_far["local window=2"]

    weft(*arguments)
    assert begun == [run.name, next(name for name in begun if "local" in name), "measure"]
    assert f"resuming after step {stopped}" in (run / "train.log").read_text()
    found = results(out)
    assert {row["label"] for row in found["entries"]} == {"full", "local window=2"}
    assert all(row["steps"]["values"] == [60] for row in found["entries"])
    weft(*arguments)
    assert len(begun) == 3, "nothing is done twice"


def test_a_time_is_turned_into_steps_that_fit(
    weft: tiny.Shell, tmp_path: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "SHORTEST", 0.2)
    out = tmp_path / "out"
    arguments = [
        "compare",
        "transformer-tiny",
        *DATA,
        "--lengths",
        "none",
        "--sentences",
        "0",
        "--budget",
        "0.5s",
        "--out",
        out,
    ]
    weft(*arguments, *settings())
    [row] = results(out)["entries"]
    [run] = row["runs"]
    assert run["stopped"] == "time" and run["steps"] >= 1
    assert row["growth"] is None and row["decoding"] is None
    weft(*arguments, *settings())
    assert len(begun) == 2, "a training and its measurement"


def test_trainings_side_by_side_are_timed_afterwards_and_scored_on_the_test(
    weft: tiny.Shell, tmp_path: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.bench.compare.measure_run.MOMENT", 0.2)
    pools: list[int] = []
    monkeypatch.setattr("weft.bench.compare.sweep.ThreadPoolExecutor", partial(one_thread, pools))
    labels = tmp_path / "texts.tsv"
    labels.write_text("".join(f"{'a b ' * (number % 5)}{'c' if number % 2 else 'd'}\t{number % 2}\n" for number in range(60)))
    sets = settings(task__kind="classification", train__best_by="accuracy")
    data = ["--data", labels, "--valid", labels, "--test", labels, "--at-once", "2", "--lengths", "8,16"]
    out = tmp_path / "out"
    weft("compare", "transformer-tiny", *KINDS, *data, "--budget", "8-steps", "--out", out, *sets)
    found = results(out)
    signature = "labels equal to their reference|strip:yes"
    expected = {"key": "accuracy", "title": "accuracy", "higher_is_better": True, "data": "test", "signature": signature}
    assert found["headline"] == expected
    assert found["counts"] == "texts"
    for row in found["entries"]:
        assert row["quality"]["mean"] == row["runs"][0]["test"]["accuracy"]
        assert row["speed"]["mean"] != row["runs"][0]["speed"], "measured alone, not while others were trained"
    assert begun[-1] == "measure" and pools == [2, 1], "trainings side by side, measurements one after the other"


def one_thread(pools: list[int], at_once: int) -> Any:
    """A pool of one thread: in this process, trainings cannot share standard error."""
    from concurrent.futures import ThreadPoolExecutor

    pools.append(at_once)
    return ThreadPoolExecutor(1)


def test_what_cannot_be_compared_is_said_before_anything_is_trained(weft: tiny.Shell, tmp_path: Path, begun: list[str]) -> None:
    out = tmp_path / "out"
    whole = ["compare", "transformer-tiny", *DATA, "--budget", "5-steps", "--out", out]
    for arguments, says in [
        (["compare", "transformer-tiny"], "--out"),
        (["compare", "transformer-tiny", "--out", out], "--budget"),
        ([*whole, "--budget", "5"], "20k-steps"),
        (["compare", *whole[2:]], "at least one recipe"),
        ([*whole, "nonsense"], "there is no such file or recipe"),
        ([*whole, "transformer-tiny"], "2 times"),
        ([*whole, "transformer-tiny,model.nonsense=1"], "model.nonsense"),
        ([*whole, "transformer-tiny,task=classification"], "different tasks"),
        ([*whole, "--slot", "model.encoder_self"], "belong together"),
        ([*whole, "--slot", "model.encoder_self", "--kinds", "full,lcoal"], "did you mean 'local'"),
        ([*whole, "--set", "train.steps=7"], "--budget"),
        ([*whole, "--budget", "1m", "--at-once", "2"], "in steps"),
        ([*whole, "--lengths", "many"], "joined by commas"),
        (["compare", "transformer-tiny", "--data", "a,b", "--budget", "5-steps", "--out", out], "no data to score"),
        (["compare", "transformer-tiny", "--valid", "a,b", "--budget", "5-steps", "--out", out], "no training data"),
        (["compare", "--redraw", tmp_path / "missing.json", "--out", out], "missing.json"),
    ]:
        weft.fails(*arguments, says=[says])
    assert begun == [] and not (out / "runs").exists()


def test_a_run_that_had_to_use_float32_is_the_wished_one(
    weft: tiny.Shell, tmp_path: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.training.prepare_run.computes_bf16", lambda device: False)
    out = tmp_path / "out"
    common = ["compare", "transformer-tiny", *DATA, "--lengths", "none", "--sentences", "0", "--out", out, *settings()]
    for _ in range(2):
        weft(*common, "--budget", "3-steps", "--set", "train.precision=bf16")
    assert begun.count("transformer-tiny.1") == 1 and not results(out)["entries"][0]["error"]


def test_a_run_with_other_settings_is_not_taken_for_a_new_one(weft: tiny.Shell, tmp_path: Path, begun: list[str]) -> None:
    out = tmp_path / "out"
    common = ["compare", "transformer-tiny", *DATA, "--lengths", "none", "--sentences", "0", "--out", out, *settings()]
    weft(*common, "--budget", "3-steps")
    weft.fails(*common, "--budget", "4-steps", says=["holds a run with other settings"])
    [row] = results(out)["entries"]
    assert row["quality"] is None and row["error"]


def test_settings_of_entries_are_not_mistaken_for_those_of_all() -> None:
    words = ["compare", "--set", "train.clip=0", "model.dim=8", "transformer-tiny,model.encoder_self=local"]
    assert cli.spread_sets(words) == ["compare", "--set", "train.clip=0", "--set", "model.dim=8", words[-1]]
    words = ["train", "auto", "--set", "train.clip=0", "model={kind: transformer, dim: 8}", "--out", "x"]
    assert cli.spread_sets(words) == [*words[:4], "--set", *words[4:]], "a section may be replaced as a whole"
