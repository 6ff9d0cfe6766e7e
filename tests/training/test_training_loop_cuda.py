"""The loop on a GPU: no step waits for the device, and a step that is not finite is skipped there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import weft
from tests.helpers import tiny
from tests.helpers.small_task import WIDTH, SmallModel, SmallTask, settings
from weft.data.batch import Batch
from weft.runs.open_run import run_config
from weft.runs.weight_files import read_tensors
from weft.tasks.base import Loss
from weft.training import checkpoint
from weft.training.distributed import World
from weft.training.log import Log
from weft.training.training_loop import fit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Unread(SmallTask):
    """Losses that stay on the device. From the third to the sixth batch, torch raises an error if the host waits."""

    def losses(self, model: nn.Module, batch: Batch, update: int) -> Iterator[Loss]:
        assert isinstance(model, SmallModel)
        number = len(self.read)
        self.read.append(number)
        torch.cuda.set_sync_debug_mode("error" if 2 <= number < 6 else "default")
        total = cross_entropy(model.out(model(batch.target)).flatten(0, 1), batch.labels.flatten(), reduction="sum")
        total = total * (float("nan") if number in self.bad else 1.0)
        yield Loss(total, batch.target_layout.mask.sum(), {"tokens": batch.target_layout.mask.sum()})
        yield Loss((model.critic(model(batch.target)) - 1).abs().sum(), batch.target_layout.mask.sum(), optimizer="critic")

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"loss": 1.0}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_no_step_waits_for_the_device_and_bad_ones_are_skipped(tmp_path: Path, precision: str) -> None:
    torch.cuda.set_sync_debug_mode("default")
    options = {"log_every": 100, "max_bad_steps": 100, "validate_every": 0, "save_every": 100, "precision": precision}
    config = settings(steps=8, **options)
    model = SmallModel()
    try:
        task = Unread(bad=frozenset({4}))
        result = fit(
            model, task, config, run=tmp_path, world=World(0, 1, torch.device("cuda")), dim=WIDTH, resume=False, log=Log()
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert result.skipped == 1
    folder = checkpoint.folder_of(tmp_path, 8)
    assert all(tensor.isfinite().all() for tensor in read_tensors(folder / "model.safetensors").values())
    assert {float(t) for name, t in read_tensors(folder / "optimizer.safetensors").items() if name.endswith("/step")} == {7.0}


def test_recorded_steps_follow_what_is_unfrozen(reverse_run: Path, tmp_path: Path) -> None:
    settings = {
        "train.device": "cuda",
        "train.precision": "bf16",
        "train.steps": 24,
        "train.save_every": 8,
        "train.unfreeze_every": 8,
        "train.batch_tokens": 256,
        "train.schedule": {"kind": "constant", "rate": 0.001},
        "train.ema": 0.9,
    }
    weft.train(start=reverse_run, out=tmp_path / "run", data=tiny.generated("copy", 300), set=settings)
    assert run_config(tmp_path / "run").train.packed is True
    before = read_tensors(reverse_run / "model.safetensors")
    for stage, frozen in ((8, ("encoder.",)), (16, ("encoder.front.",)), (24, ())):
        folder = checkpoint.folder_of(tmp_path / "run", stage)
        after, average = (read_tensors(folder / f"{file}.safetensors") for file in ("model", "ema"))
        same = {name for name in before if torch.equal(before[name], after[name])}
        assert same == {name for name in before if name.startswith(frozen)}, stage
        assert same == {name for name in before if torch.equal(before[name], average[name])}, stage
