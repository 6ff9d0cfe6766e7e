"""One process of several trainings of a small Transformer: `python sharded_jobs.py '[{"out": "RUN", "set": {…}}]'`.

A job trains, or resumes a run (`resume`), or writes the gradients of one update in float64 (`gradients`), or loads a checkpoint
(`copy`) and saves it again at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.helpers import pictures, tiny
from weft.config.sections import Config, load_config
from weft.data.batch import Position
from weft.errors import Interrupted
from weft.runs.distributed_tensors import local, whole
from weft.runs.weight_files import write_tensors
from weft.tasks.base import Task
from weft.training import checkpoint, train_run
from weft.training.distributed import World, join_processes
from weft.training.prepare_run import prepare_run
from weft.training.update_step import UpdateStep

SMALL: Mapping[str, Any] = {
    **tiny.SETTINGS,
    "model.encoder_layers": 2,
    "model.decoder_layers": 2,
    "train.steps": 50,
    "train.accumulate": 6,
    "train.batch_tokens": 256,
    "train.log_every": 1,
    "train.save_every": 10,
    "train.ema": 0.9,
    "train.schedule": {"kind": "inverse_sqrt", "rate": 1e-3, "warmup": 40},
    "train.keep_last": 5,
    "train.clip": 0.5,
    "train.shard": True,
}

SHORT: Mapping[str, Any] = {"train.steps": 5, "train.save_every": 5, "train.validate_every": 0, "model.lora.rank": 2}
"""Settings of a fine-tuning with adapters."""


LATER = ("torch.distributed.fsdp", "weft.models.transformer", "weft.training.result_files", "sacrebleu")


class LastingWorld(World):
    """Processes that stay together after a training, for the next one."""

    def close(self) -> None:
        """Waits for all processes only."""
        if self.size > 1:
            torch.distributed.barrier(group=self.control)


def prepared(world: World, out: Path, settings: Mapping[str, Any], dtype: torch.dtype) -> tuple[Config, Task, UpdateStep]:
    """A training before its first update."""
    config = load_config("transformer-tiny", [f"{key}={json.dumps(value)}" for key, value in {**SMALL, **settings}.items()])
    task, model = prepare_run(config.with_data(tiny.generated("reverse", 500)), out, world.device)
    step = UpdateStep(model.to(dtype).train(), task, config.train, world)
    step.start()
    return config, task, step


def copy_checkpoint(world: World, folder: Path, out: Path) -> None:
    _, _, step = prepared(world, out, {}, torch.float32)
    progress = checkpoint.load(folder, step.state, world)
    checkpoint.save(out, step.state, progress, world=world)


def gradients(world: World, out: Path, settings: Mapping[str, Any]) -> None:
    """Writes the gradient sums of one update in float64, and the share that this process holds."""
    config, task, step = prepared(world, out, settings, torch.float64)
    step.enter(1)
    batches = [batch for (batch, _), _ in zip(task.batches(Position()), range(config.train.accumulate))]
    for place in world.share(config.train.accumulate):
        step.backward(batches[place], 1)
    named = {name: weight.grad for name, weight in step.state.model.named_parameters() if weight.grad is not None}
    found = {name: whole(gradient).clone() for name, gradient in named.items()}
    step.finish(1, 0.0)
    moments = [entry for state in step.state.optimizers["model"].state.values() for entry in state.values() if entry.dim()]
    for name, tensors in (("weights", list(step.state.model.parameters())), ("moments", moments)):
        part, total = (sum(tensor.numel() for tensor in each) for each in ([local(one) for one in tensors], tensors))
        found[f"share of {name}"] = torch.tensor(part / total)
    if world.first:
        write_tensors(out / f"gradients-{world.size}.safetensors", found)


def run_jobs(jobs: Sequence[Mapping[str, Any]], world: World) -> None:
    train_run.join_processes = lambda device: world  # type: ignore[assignment]
    for job in jobs:
        out, settings = Path(job["out"]), job.get("set", {})
        if "gradients" in job:
            gradients(world, out, settings)
            continue
        if "copy" in job:
            copy_checkpoint(world, Path(job["copy"]), out)
            continue
        try:
            if job.get("resume"):
                train_run.train(out=out, resume=True, set=settings)
            elif "start" in job:
                train_run.train(start=job["start"], data=tiny.generated("copy", 500), out=out, set={**SHORT, **settings})
            else:
                tiny.train(out, settings={**SMALL, **settings}, valid=tiny.generated("reverse", 20, "valid"))
        except Interrupted as stopped:
            print(stopped)


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    joined = join_processes("cpu")
    with pictures.left_out():
        run_jobs(json.loads(sys.argv[1]), LastingWorld(**vars(joined)))
    joined.close()
