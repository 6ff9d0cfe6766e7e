"""A run is resolved once: one task, one model, one configuration written, and a folder that can be used again."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.helpers import tiny
from weft.config import sections
from weft.errors import RunError
from weft.runs import migrations
from weft.runs.run_folder import RunLock
from weft.tasks.base import Task
from weft.training import prepare_run

QUICK = {"train.steps": 1, "train.validate_bleu": False}


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens in training: tasks constructed, models built and on which device, files written, files read."""
    happened: list[str] = []

    def watch(owner: Any, name: str, describe: Any) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(*arguments: Any, **options: Any) -> Any:
            happened.append(describe(*arguments))
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(Task, "__init__", lambda *_: "task")
    watch(prepare_run, "build_network", lambda *_: f"model on {torch.empty(0).device.type}")
    watch(sections, "replace_file", lambda file, _: f"write {file.parent.name}/{file.name}")
    watch(sections, "_read", lambda file: f"read {file}")
    return happened


def test_a_new_run_is_resolved_once(events: list[str], tmp_path: Path) -> None:
    tiny.train(tmp_path / "run", settings={**QUICK, "data.vocabulary": 5000})
    assert events == [
        "read transformer-tiny",
        "task",
        "model on meta",  # an outline without weights, before the data is read
        "model on cpu",
        "write run/weft.schema.json",
        "write run/config.yaml",
        "write checkpoints/config.yaml",
    ]
    assert sections.load_config(tmp_path / "run" / "config.yaml").data.vocabulary < 5000


def test_a_resumed_run_takes_the_same_way(events: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny.train(run, settings=QUICK)
    first = [event for event in events[1:] if "schema" not in event]
    events.clear()
    weft.train(out=run, resume=True, set={"train.steps": 2})
    assert events == [f"read {run}/config.yaml", f"read {run}/checkpoints/config.yaml", *first]


def test_a_run_that_was_killed_before_its_first_step_can_be_started_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    migrations.write_format(run)
    for name in ("run.lock", "tokenizer.json", "train.log"):
        (run / name).write_text("of another training")
    with pytest.raises(RunError, match="first step yet; if it was stopped, start it again, without --resume"):
        weft.train(out=run, resume=True)
    with RunLock(run), pytest.raises(RunError, match="in use"):
        tiny.train(run, settings=QUICK)
    assert (run / "tokenizer.json").read_text() == "of another training"
    tiny.train(run, settings=QUICK)
    assert "another" not in (run / "train.log").read_text()


KILLED = """
import json, os, signal, sys
import weft
from weft.tasks.corpus_task import CorpusTask
from weft.training.auto import choose_settings

def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "auto":
    choose_settings.train_tokenizers = killed
else:
    CorpusTask.learn = killed
weft.train(sys.argv[1], **json.loads(sys.argv[2]))
"""


@pytest.mark.parametrize("recipe", ["transformer-tiny", "auto"])
def test_a_run_that_was_killed_while_its_data_was_prepared_can_be_resumed(recipe: str, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"one {n} dog {n % 7}\t{n % 7} hund {n} ein\n" for n in range(300)))
    small = {"model.dim": 16, "model.heads": 2, "model.encoder_layers": 1, "model.decoder_layers": 1, "train.device": "cpu"}
    settings = {**QUICK, **small, "train.steps": 2, "data.vocabulary": 300, "data.hold_out": 20}
    options: dict[str, Any] = {"data": str(pairs), "set": settings}
    run, whole = tmp_path / "run", tmp_path / "whole"
    command = [sys.executable, "-c", KILLED, recipe, json.dumps({**options, "out": str(run)})]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert not (run / "config.yaml").exists()
    weft.train(out=run, resume=True, set={"train.steps": 3})
    weft.train(recipe, out=whole, **{**options, "set": {**settings, "train.steps": 3}})
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert sections.load_config(run / "config.yaml") == sections.load_config(whole / "config.yaml")


@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors", "notes.txt"])
def test_files_of_others_are_not_removed(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text("mine")
    if name != "notes.txt":
        migrations.write_format(run)
    with pytest.raises(RunError, match="the folder is not empty"):
        tiny.train(run, settings=QUICK)
    assert (run / name).read_text() == "mine"


@pytest.mark.parametrize("recipe", ["speech-digits", "synthesis-digits"])
def test_models_that_read_or_write_frames_are_built_without_data(recipe: str, tmp_path: Path) -> None:
    """As `weft bench RECIPE` does."""
    task, sizes, model = prepare_run.untrained_model(sections.load_config(recipe), tmp_path)
    batch = task.dummy_batch(16, sizes, 2)
    (loss,) = task.losses(model, batch, 1)
    assert torch.isfinite(loss.total)
