"""`weft compare --engine ray`: trainings run in processes of Ray, and one that is lost continues."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.helpers import tiny
from tests.helpers.ray_cluster import cluster, workers  # noqa: F401 — a fixture of this module
from weft.bench.compare.ray_trainings import RayTrainings
from weft.bench.compare.training_jobs import Failure, Processes, Stopped, Training
from weft.runs.run_folder import complete, records

DATA = (tiny.generated("reverse", 300),), (tiny.generated("reverse", 20, "valid"),)


def training(*more: str, steps: int = 12) -> Training:
    sets = tiny.sets({"train.steps": steps, "train.save_every": 4, "train.log_every": 1, "train.seed": 3})[1:]
    return Training("transformer-tiny", *DATA, (*sets, *more))


def test_entries_are_trained_side_by_side_and_reported(weft: tiny.Shell, tmp_path: Path) -> None:
    sets = [word for word in training().sets if not word.startswith(("train.steps=", "train.keep_last=", "train.tensorboard="))]
    entries = ("transformer-tiny", "transformer-tiny,label=two,model.dim=16")
    data = ("--data", *DATA[0], "--valid", *DATA[1], "--lengths", "none", "--sentences", "4")
    weft("compare", *entries, *data, "--budget", "6-steps", "--engine", "ray", "--out", tmp_path / "c", "--set", *sets)
    found = json.loads((tmp_path / "c" / "results.json").read_text())
    assert {row["label"] for row in found["entries"]} == {"transformer-tiny", "two"}
    assert all(row["steps"]["values"] == [6] and row["quality"] is not None for row in found["entries"])


def test_a_lost_process_costs_no_training(tmp_path: Path) -> None:
    trainings, processes, folder = RayTrainings(), Processes(tmp_path / "logs"), tmp_path / "run"
    assert trainings.at_once == 2
    errors: list[BaseException] = []

    def run() -> None:
        try:
            trainings(training(steps=40), folder, processes, "run")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until = time.monotonic() + 200
    while not (folder / "checkpoints" / "step-00000004").exists():
        assert thread.is_alive() and time.monotonic() < until, errors
        time.sleep(0.05)
    os.kill(workers(b"ray::train_here")[0], signal.SIGKILL)
    thread.join(200)
    assert not errors and complete(folder)
    steps = {line["step"] for line in records(folder) if line["event"] == "train"}
    assert steps == set(range(1, 41))


def test_errors_are_those_of_the_training(tmp_path: Path) -> None:
    trainings = RayTrainings()
    with pytest.raises(Failure, match="does not support causal use"):
        trainings(training("model.decoder_self=linformer"), tmp_path / "bad", Processes(tmp_path / "logs"), "bad")
    with pytest.raises(Stopped, match="not started"):
        trainings(training(), tmp_path / "none", Processes(tmp_path / "logs", until=0.0), "none")
