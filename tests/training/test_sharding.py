"""`train.shard` over gloo: sharded processes train as one does, and any number of them continues."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import sharded_jobs, small_task
from tests.helpers.process_group import launch
from tests.helpers.tiny import once
from weft.config.sections import Config, TrainSection
from weft.errors import ConfigError
from weft.runs.weight_files import read_tensors
from weft.training import checkpoint
from weft.training.distributed import World
from weft.training.prepare_run import untrained_model
from weft.training.sharding import PlainCopy, check_shardable, own_layers, shards

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "recomputed": {"train.recompute": True, "train.clip": 0},
    "recurrent": {"model.decoder_self": "recurrent", "model.wiring": "mix", "model.share_embeddings": "none"},
    "reversible": {"model.reversible": True},
}


def jobs(folder: Path) -> list[dict[str, Any]]:
    """All that is done in one process and in two, because starting processes takes longest."""
    for name in VARIANTS:
        (folder / name).mkdir(parents=True)
    gradients = [{"out": str(folder / name), "gradients": True, "set": changes} for name, changes in VARIANTS.items()]
    return [*gradients, {"out": str(folder / "run")}, {"out": str(folder / "adapted"), "start": str(folder / "run")}]


def here(todo: list[dict[str, Any]]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_jobs.train_run, "join_processes", None)
        sharded_jobs.run_jobs(todo, sharded_jobs.LastingWorld(0, 1, torch.device("cpu")))


def train_all(folder: Path) -> None:
    """One process, two, and what others continue at step 16 of the two."""
    here(jobs(folder / "one"))
    launch(sharded_jobs.__file__, jobs(folder / "two"))
    for name in ("on-1", "on-3"):
        run = shutil.copytree(folder / "two" / "run", folder / name)
        for step in checkpoint.steps(run):
            if step > 16:
                shutil.rmtree(checkpoint.folder_of(run, step))
    here([{"out": str(folder / "on-1"), "resume": True}])
    launch(sharded_jobs.__file__, [{"out": str(folder / "on-3"), "resume": True}], processes=3)


@pytest.fixture
def trained(shared_folder: Path) -> Path:
    return once(shared_folder / "sharded", train_all)


def losses(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["event"] == "train"}


def distance(first: Path, second: Path) -> float:
    a, b = read_tensors(first), read_tensors(second)
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_those_of_one_process(name: str, trained: Path) -> None:
    one, two = (read_tensors(trained / count / name / f"gradients-{n}.safetensors") for n, count in ((1, "one"), (2, "two")))
    held = {key: float(two.pop(key)) for key in ("share of weights", "share of moments")}
    assert all(0.45 < share < 0.55 for share in held.values()) and float(one.pop("share of weights")) == 1
    assert max(float((one[key] - two[key]).abs().max()) for key in two) < 1e-10
    assert all(float(gradient.abs().max()) > 0 for gradient in two.values())


def test_every_step_has_the_loss_of_one_process(trained: Path) -> None:
    one, two = losses(trained / "one" / "run"), losses(trained / "two" / "run")
    assert len(one) == 24 and two == pytest.approx(one, abs=1e-5)
    for file in ("model.safetensors", "checkpoints/step-00000024/ema.safetensors"):
        assert distance(trained / "one" / "run" / file, trained / "two" / "run" / file) < 1e-3


@pytest.mark.parametrize("name", ["on-1", "on-3"])
def test_another_number_of_processes_continues(name: str, trained: Path) -> None:
    assert losses(trained / name) == pytest.approx(losses(trained / "one" / "run"), abs=1e-5)
    assert len(losses(trained / name)) == 24


def test_a_checkpoint_looks_like_that_of_one_process(trained: Path) -> None:
    folders = [checkpoint.folder_of(trained / count / "run", 24) for count in ("one", "two")]
    for file in ("model.safetensors", "optimizer.safetensors", "ema.safetensors"):
        first, second = (read_tensors(folder / file) for folder in folders)
        assert {name: (t.shape, t.dtype) for name, t in first.items()} == {
            name: (t.shape, t.dtype) for name, t in second.items()
        }


def test_adapters_are_trained_in_shards(trained: Path) -> None:
    one, two = (losses(trained / count / "adapted") for count in ("one", "two"))
    assert len(one) == 5 and two == pytest.approx(one, abs=1e-5)
    assert len(set(one.values())) == 5
    assert distance(*(trained / count / "adapted" / "model.safetensors" for count in ("one", "two"))) < 1e-5


def model_of(**settings: Any) -> torch.nn.Module:
    small = {"model.dim": 16, "model.heads": 2, "model.feedforward": 32, "data.tokenizer": "bytes"}
    return untrained_model(Config().replaced({**small, **settings}), Path())[2]


def test_a_plain_copy_keeps_ties_and_leaves_the_model_alone() -> None:
    model = model_of()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copied = PlainCopy(model).filled(model, {name: 2 * weight.detach() for name, weight in model.named_parameters()})
    assert len(list(copied.parameters())) == len(list(model.parameters())) < len(model.state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(weight, 2 * before[name]) for name, weight in copied.named_parameters())


def test_layers_that_share_weights_stay_with_the_rest() -> None:
    model = model_of()
    layers = own_layers(model)
    assert len(layers) == len(model.encoder.layers) + len(model.decoder.layers)  # type: ignore[union-attr, arg-type]
    tied = copy.deepcopy(model)
    first, second = tied.encoder.layers[:2]  # type: ignore[union-attr, index]
    second.network.down.weight = first.network.down.weight
    assert [layer for layer in tied.encoder.layers if layer in own_layers(tied)] == [*tied.encoder.layers[2:]]  # type: ignore[union-attr, index]


def test_one_process_has_nobody_to_share_with() -> None:
    assert not shards(TrainSection(shard=True), World(0, 1, torch.device("cpu")))


@pytest.mark.parametrize(
    ("options", "message"), [({"unfreeze_every": 5}, "train.unfreeze_every"), ({"compile": True}, "train.compile")]
)
def test_what_cannot_be_sharded_is_refused(options: dict[str, Any], message: str) -> None:
    task = untrained_model(Config(), Path())[0]
    with pytest.raises(ConfigError, match=message):
        check_shardable(task, TrainSection(shard=True, **options))
    with pytest.raises(ConfigError, match="several optimisers"):
        check_shardable(small_task.SmallTask(), TrainSection(shard=True))
