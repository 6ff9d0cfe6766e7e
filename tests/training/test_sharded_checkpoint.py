"""Checkpoints of a sharded training: what one process of a group of one writes, and what damage, full disks and kills do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.helpers.small_task import SmallModel
from tests.training.test_checkpoint import largest_file
from weft import file_access
from weft.config.registry import build
from weft.config.sections import Config
from weft.errors import RunError
from weft.runs.run_folder import remove_stale
from weft.runs.weight_files import named_weights, without_ties
from weft.training import checkpoint, sharded_checkpoint
from weft.training.checkpoint import Progress, TrainingState
from weft.training.ema import Ema
from weft.training.prepare_run import untrained_model
from weft.training.sharding import PlainCopy


@pytest.fixture
def alone() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def sharded(seed: int, steps: int = 1) -> TrainingState:
    torch.manual_seed(seed)
    model = SmallModel()
    plain = PlainCopy(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    optimizer, average = build("weft.training:OPTIMIZERS", "adamw", model.parameters()), Ema(model, 0.9)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for _ in range(steps):
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    return TrainingState(model, {"model": optimizer}, average, plain)


def test_it_gives_back_what_was_saved(alone: None, tmp_path: Path) -> None:
    first, second = sharded(1), sharded(2, steps=0)
    folder = checkpoint.save(tmp_path, first, Progress(7))
    assert checkpoint.load(folder, second) == Progress(7)
    for name, tensors in first.files().items():
        again = second.files()[name]
        assert tensors.keys() == again.keys()
        assert all(torch.equal(whole(each), whole(again[key])) for key, each in tensors.items()), name


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def test_a_training_that_has_no_state_yet_is_saved_too(alone: None, tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, sharded(1, steps=0), Progress(0))
    assert not (folder / "optimizer").exists()
    assert checkpoint.load(folder, sharded(2, steps=0)) == Progress(0)


@pytest.mark.parametrize("name", ["model", "optimizer", "ema"])
@pytest.mark.parametrize("damage", ["cut", "gone", "flipped"])
def test_a_damaged_part_is_noticed_and_named(alone: None, tmp_path: Path, name: str, damage: str) -> None:
    folder = checkpoint.save(tmp_path, sharded(1), Progress(3))
    (file,) = (folder / name).iterdir()
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-8] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(RunError, match=rf"{name}/shard-00001.*delete .*step-00000003 to continue from the previous checkpoint"):
        checkpoint.load(folder, sharded(1))


def test_another_architecture_is_refused(alone: None, tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, sharded(1), Progress(3))
    state = sharded(1)
    state.model.extra = nn.Linear(2, 2)
    with pytest.raises(RunError, match=r"different architecture: extra.weight is missing"):
        checkpoint.load(folder, state)


def test_a_full_disk_leaves_the_former_checkpoint(alone: None, tmp_path: Path) -> None:
    checkpoint.save(tmp_path, sharded(1), Progress(1))
    with largest_file(3000), pytest.raises(RunError, match=r"could not save .*step-00000002.*free some space.*--resume"):
        checkpoint.save(tmp_path, sharded(2), Progress(2))
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    assert checkpoint.load(checkpoint.folder_of(tmp_path, 1), sharded(1)).update == 1


def test_a_killed_save_leaves_the_former_checkpoint(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, sharded(1), Progress(1))
    with monkeypatch.context() as patch:
        patch.setattr(file_access, "_remove", lambda path: None)  # a process that is killed tidies nothing up
        patch.setattr(checkpoint, "_hash", lambda file: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            checkpoint.save(tmp_path, sharded(2), Progress(2))
    (left,) = {entry.name for entry in (tmp_path / "checkpoints").iterdir()} - {"step-00000001"}
    assert checkpoint.steps(tmp_path) == [1] and list((tmp_path / "checkpoints" / left / "model").iterdir())
    remove_stale(tmp_path)
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    assert checkpoint.load(checkpoint.folder_of(tmp_path, 1), sharded(2)) == Progress(1)


def test_parts_are_synced_before_they_get_their_name(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = set[str](), os.fsync

    def fsync(handle: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        assert checkpoint.latest(tmp_path) is None or synced >= {"shard-00001-model-00001-of-00001.safetensors", "state.json"}
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.save(tmp_path, sharded(1), Progress(1))
    assert "checkpoints" in synced


def test_a_process_without_rows_names_the_same_weights() -> None:
    """With more processes than rows, some hold nothing of a weight, and all such weights would look like the same one."""
    small = {"model.dim": 16, "model.heads": 2, "model.feedforward": 32, "data.tokenizer": "bytes"}
    model = untrained_model(Config().replaced(small), Path())[2]
    wanted = list(named_weights(model))
    assert len(wanted) < len(model.state_dict()), "some are tied"
    distributed.init_process_group("fake", rank=63, world_size=64, store=FakeStore())
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (64,)))
        averages = Ema(model, 0.9).average
        assert list(named_weights(model)) == wanted and list(without_ties(averages)) == list(averages)
    finally:
        distributed.destroy_process_group()


def test_an_error_of_another_process_is_raised_as_it_is(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileExistsError), sharded_checkpoint._as_one_process_has_them():
        raise torch.distributed.checkpoint.CheckpointException("write", {5: (FileExistsError(17, "there is a file"), None)})  # type: ignore[dict-item]
