"""Checkpoints and run folders: complete or absent, never partial; and errors that say what to do."""

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.helpers.small_task import SmallModel, train
from weft.config.registry import build
from weft.errors import RunError
from weft.runs import weight_files as weights
from weft.runs.open_run import run_config
from weft.runs.run_folder import RunLock, create_folder, remove_stale
from weft.training import checkpoint
from weft.training.checkpoint import Progress, TrainingState, publish
from weft.training.ema import Ema


def trained(model: nn.Module | None = None) -> TrainingState:
    model = model or SmallModel()
    return TrainingState(model, {"model": build("weft.training:OPTIMIZERS", "adamw", model.parameters())}, Ema(model, 0.9))


def filled(value: float) -> TrainingState:
    found = trained()
    with torch.no_grad():
        for parameter in found.model.parameters():
            parameter.fill_(value)
    return found


def test_a_checkpoint_gives_back_what_was_saved(tmp_path: Path) -> None:
    first = trained()
    progress = Progress(7, checkpoint.Position(1, 2, 3), {"loss": 2.5}, 5, 1, 4, 2, 12.5)
    folder = checkpoint.save(tmp_path, first, progress)
    assert folder == tmp_path / "checkpoints" / "step-00000007" == checkpoint.latest(tmp_path)
    second = filled(0.0)
    assert checkpoint.load(folder, second) == progress
    assert all(torch.equal(a, b) for a, b in zip(first.model.state_dict().values(), second.model.state_dict().values()))
    assert second.model.out.weight is second.model.embedding.weight


def test_nothing_in_a_checkpoint_is_pickled(tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, trained(), Progress(1))
    assert {file.suffix for file in folder.iterdir()} == {".safetensors", ".json"}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "flipped"])
def test_a_damaged_file_is_noticed_and_named(tmp_path: Path, name: str, damage: str) -> None:
    folder = checkpoint.save(tmp_path, trained(), Progress(3))
    file = folder / name
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    elif damage == "flipped" and name != "state.json":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        file.write_bytes(content[: len(content) // 2] if damage != "empty" else b"")
    with pytest.raises(RunError, match=r"step-00000003.*delete .*step-00000003 to continue from the previous checkpoint"):
        checkpoint.load(folder, trained())


def test_another_architecture_is_refused_with_the_tensors_that_differ(tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, trained(), Progress(3))
    other = SmallModel()
    other.critic = nn.Linear(5, 1)
    other.extra = nn.Linear(2, 2)
    with pytest.raises(
        RunError, match=r"different architecture: critic.weight has shape \[1, 12\], not \[1, 5\]; extra.weight is missing"
    ):
        checkpoint.load(folder, trained(other))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Makes writing more than `size` bytes fail in this process, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_while_saving_leaves_the_former_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, trained(), Progress(1))
    with largest_file(3000), pytest.raises(RunError, match=r"could not save .*step-00000002.*MiB are free.*free some space"):
        checkpoint.save(tmp_path, trained(), Progress(2))
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    assert checkpoint.load(checkpoint.folder_of(tmp_path, 1), trained()).update == 1


def test_a_full_disk_while_publishing_leaves_the_former_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, {"a": torch.ones(3)}, {"step": "1"})
    file = tmp_path / "model.safetensors"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(weights, "sync", full)
    with pytest.raises(RunError, match=r"could not save .*model.safetensors: .*No space left"):
        publish(tmp_path, {"a": torch.zeros(3)}, {"step": "2"})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.safetensors", "published.jsonl"]
    assert torch.equal(weights.read_tensors(file)["a"], torch.ones(3))
    assert weights.read_metadata(file)["step"] == "1"


def test_prune_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        checkpoint.save(tmp_path, trained(), Progress(step))
    checkpoint.prune(tmp_path, 2, best=2)
    assert checkpoint.steps(tmp_path) == [2, 4, 5]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


def test_average_is_the_mean_of_the_last(tmp_path: Path) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (3, 6.0)):
        checkpoint.save(tmp_path, filled(value), Progress(step))
    assert checkpoint.average(tmp_path, last=2)["out.bias"].unique().tolist() == [4.0]
    with pytest.raises(RunError, match="there is no checkpoint to average"):
        checkpoint.average(tmp_path / "other", last=2)


def test_average_is_summed_in_double_precision(tmp_path: Path) -> None:
    for step, value in ((1, 1e8), (2, 3.0), (3, -1e8)):
        checkpoint.save(tmp_path, filled(value), Progress(step))
    assert checkpoint.average(tmp_path, last=3)["out.bias"].unique().tolist() == [1.0]


def test_partial_files_of_a_crash_are_removed_and_never_loaded(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, trained(), Progress(1))
    half = tmp_path / "checkpoints" / ".tmp-step-00000002"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".tmp-model.safetensors").write_bytes(b"half")
    assert checkpoint.latest(tmp_path) == checkpoint.folder_of(tmp_path, 1)
    remove_stale(tmp_path)
    assert not half.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoints"]


def test_a_run_folder_is_never_overwritten_silently(tmp_path: Path) -> None:
    run = tmp_path / "run"
    create_folder(run)
    (run / "notes.txt").write_text("mine")
    with pytest.raises(
        RunError, match=r"not empty, and weft does not overwrite files; continue the run with `weft train --resume"
    ):
        create_folder(run)
    assert (run / "notes.txt").read_text() == "mine"
    with pytest.raises(RunError, match=r"not a run folder: it has no config.yaml"):
        run_config(run)
    with pytest.raises(RunError, match="no such run folder"):
        run_config(tmp_path / "other")
    with pytest.raises(RunError, match="is a file"):
        create_folder(run / "notes.txt")


def test_a_new_run_in_a_folder_with_checkpoints_is_refused(tmp_path: Path) -> None:
    train(tmp_path, steps=3)
    before = json.dumps(checkpoint.check(checkpoint.folder_of(tmp_path, 3)))
    with pytest.raises(RunError, match="checkpoints of an earlier training"):
        train(tmp_path, steps=3)
    assert json.dumps(checkpoint.check(checkpoint.folder_of(tmp_path, 3))) == before


HOLD = """
import sys, time
from pathlib import Path
from weft.runs.run_folder import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_in_use_is_refused_and_free_again_after_kill_9(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"{tmp_path}: the run folder is in use by process {holder.pid}"), RunLock(tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with RunLock(tmp_path):
        pass
