"""Trackers: what each package is sent, that a resumed run repeats nothing, and that no failure of a package stops training."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.helpers import tiny
from weft.config.sections import Config
from weft.errors import ConfigError, RunError
from weft.training.trackers.base import Tracker, open_trackers

NAMES = ("trackio", "wandb", "mlflow")


class Fake(ModuleType):
    """The part of the three packages' interfaces that weft uses, in one; `calls` has every call. fails: a call that raises."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.fails = ""
        self.info = SimpleNamespace(run_id="fake-1")
        self.id = "fake-1"
        for method in (
            *("init", "log", "finish", "define_metric"),
            *("set_experiment", "start_run", "log_params", "log_metrics", "end_run"),
        ):
            setattr(self, method, self._called(method))

    def _called(self, name: str) -> Any:
        def method(*arguments: Any, **options: Any) -> Fake:
            if name == self.fails:
                raise OSError("no connection")
            self.calls.append((name, arguments, options))
            return self

        return method

    def named(self, *names: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(arguments, options) for name, arguments, options in self.calls if name in names]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Fake]:
    found = {name: Fake(name) for name in NAMES}
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


def trackers(run: Path, *names: str) -> list[Tracker]:
    config = Config().replaced({"train.trackers": list(names)})
    return [each for each in open_trackers(run, config) if isinstance(each, Tracker)]


def write(tracker: Tracker, *steps: int) -> None:
    for step in steps:
        tracker.record({"event": "train", "step": step, "loss": 1.0, "bad": None})
        tracker.record({"event": "validation", "step": step, "bleu": 2.0})


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_continues_and_repeats_nothing(name: str, tmp_path: Path, fakes: dict[str, Fake]) -> None:
    (first,) = trackers(tmp_path, name)
    first.begin(0)
    write(first, 1, 2, 3)
    (second,) = trackers(tmp_path, name)
    second.begin(2)
    write(second, 3, 4)
    second.record({"event": "summary", "step": 4, "loss": 1.0})
    second.close()
    sent = fakes[name].named("log", "log_metrics")
    values = [(options.get("step") or arguments[0]["step"], *arguments[0]) for arguments, options in sent]
    found = [(step, *(key for key in keys if key != "step")) for step, *keys in values]
    assert found == [(step, key) for step in (1, 2, 3, 4) for key in ("train/loss", "validation/bleu")]
    assert len(fakes[name].named("finish", "end_run")) == 1
    opened = fakes[name].named("init", "start_run")
    assert first.id in map(str, opened[1][1].values()), "the second process continues the run of the first"


@pytest.mark.parametrize("name", NAMES)
def test_a_new_run_knows_its_settings(name: str, tmp_path: Path, fakes: dict[str, Fake]) -> None:
    (tracker,) = trackers(tmp_path, name)
    tracker.begin(0)
    if name == "mlflow":
        ((arguments, _),) = fakes[name].named("log_params")
        assert arguments[0]["train.batch_tokens"] == "4096"
    else:
        ((_, options),) = fakes[name].named("init")
        assert options["config"]["train"]["batch_tokens"] == 4096


def test_a_run_that_starts_anew_is_another_one(tmp_path: Path, fakes: dict[str, Fake]) -> None:
    (first,) = trackers(tmp_path, "wandb")
    first.begin(0)
    write(first, 1)
    (second,) = trackers(tmp_path, "wandb")
    second.begin(0)
    write(second, 1)
    assert "id" not in fakes["wandb"].named("init")[1][1] and len(fakes["wandb"].named("log")) == 4


def test_training_goes_on_without_a_tracker_that_fails(
    tmp_path: Path, fakes: dict[str, Fake], capsys: pytest.CaptureFixture[str]
) -> None:
    (tracker,) = trackers(tmp_path, "wandb")
    tracker.begin(0)
    fakes["wandb"].fails = "log"
    write(tracker, 1, 2)
    tracker.close()
    assert capsys.readouterr().err == "warning: wandb receives nothing more of this run: no connection\n"


def test_a_tracker_that_cannot_start_or_is_missing_is_said_before_training(
    tmp_path: Path, fakes: dict[str, Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes["mlflow"].fails = "set_experiment"
    with pytest.raises(RunError, match=r"train\.trackers: mlflow cannot be started: no connection"):
        trackers(tmp_path, "mlflow")[0].begin(0)
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ConfigError, match=r"trackio needs the package trackio: pip install 'weft-seq2seq\[trackio\]'"):
        trackers(tmp_path, "trackio")
    with pytest.raises(ConfigError, match=r"train\.trackers"):
        Config().replaced({"train.trackers": ["wand"]})


def test_a_training_reports_to_all_its_trackers(tmp_path: Path, fakes: dict[str, Fake]) -> None:
    options = {"train.steps": 4, "train.log_every": 2, "train.trackers": list(NAMES), "train.validate_bleu": False}
    tiny.train(tmp_path / "run", settings=options)
    for name in NAMES:
        assert len(fakes[name].named("log", "log_metrics")) == 3, name
    assert json.loads((tmp_path / "run" / "trackers.json").read_text())["wandb"]["sent"] == {"train": 4, "validation": 4}


SCRIPT = """
import sys
from pathlib import Path
from weft.config.sections import Config
from weft.training.trackers.base import open_trackers
for first, steps in ((0, (1, 2)), (1, (2, 3))):
    (tracker,) = open_trackers(Path(sys.argv[1]), Config().replaced({"train.trackers": [sys.argv[2]]}))
    tracker.begin(first)
    for step in steps:
        tracker.record({"event": "train", "step": step, "loss": 1.0 / step})
    tracker.close()
"""


@pytest.mark.parametrize("name", NAMES)
def test_the_package_itself_works_offline(name: str, tmp_path: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    run = tmp_path / "run"
    run.mkdir()
    offline = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db" if find_spec("sqlalchemy") else f"file:{tmp_path}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-c", SCRIPT, str(run), name]
    done = subprocess.run(command, env={**os.environ, **offline}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and f"warning: {name} receives" not in done.stderr, done.stderr
    if name == "wandb":
        assert len(list(run.glob("wandb/offline-run-*/*.wandb"))) >= 1
    elif name == "trackio":
        (file,) = (tmp_path / "trackio").glob("weft.db")
        with sqlite3.connect(file) as database:
            assert [row[0] for row in database.execute("select step from metrics order by step")] == [1, 2, 3]
    elif not find_spec("sqlalchemy"):
        (file,) = (tmp_path / "mlruns").glob("*/*/metrics/train/loss")
        assert [line.split()[2] for line in file.read_text().splitlines()] == ["1", "2", "3"]
