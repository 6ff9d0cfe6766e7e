"""The model of a benchmark: that of a run, or that of a recipe with its initial weights. No data is read."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from weft.config.sections import Config, load_config
from weft.errors import ConfigError
from weft.models.base import Network, Sizes
from weft.runs.device_and_precision import choose_device
from weft.runs.open_run import open_run, silent
from weft.tasks.base import Task, typical_length
from weft.training.memory import resolve_batch_tokens
from weft.training.prepare_run import resolve_batches, untrained_model


@dataclass(frozen=True)
class BenchmarkedModel:
    """A model on its device, its task, the sizes of its vocabularies, and the tokens per row of its batches."""

    name: str
    config: Config
    task: Task
    sizes: Sizes
    model: Network
    length: int

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def rows(self) -> int:
        """Rows of a training batch."""
        return max(1, self.config.train.batch_tokens // self.length)


def open_benchmarked_model(name: str, sets: Sequence[str] = (), length: int | None = None) -> BenchmarkedModel:
    """Opens a run folder, a recipe or a YAML file; `sets` are written over its configuration."""
    if os.path.isdir(name):
        run = open_run(Path(name), sets)
        task, config, sizes, model = run.task, run.config, run.sizes, run.model
    else:
        config = load_config(name, sets)
        config = resolve_batch_tokens(config, choose_device(config.train.device), silent)
        task, sizes, model = untrained_model(config, Path(name))
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    device = choose_device(config.train.device)
    config = resolve_batches(config, model, task, device)
    return BenchmarkedModel(name, config, task, sizes, model.to(device), _length(length, task, model))


def _length(wanted: int | None, task: Task, model: Network) -> int:
    most = model.max_length
    if wanted is None:
        return typical_length(task) if most is None else min(typical_length(task), most)
    if most is not None and wanted > most:
        raise ConfigError(f"--length {wanted}: the model has {most} positions; give at most that many tokens")
    return wanted
