"""The subject of a benchmark: the model of a run, or of a recipe with its initial weights. No data is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from weft.config.sections import Config, load_config
from weft.data.tokenizers.word_character_byte import ByteTokenizer
from weft.errors import ConfigError
from weft.models.base import Network, Sizes
from weft.runs.device import choose_device
from weft.runs.open_run import build_task, open_run
from weft.tasks.base import Task
from weft.training.train_run import resolve_batches

CHARACTERS = 100
"""The assumed number of different characters in a text, if a recipe only gives a maximum."""


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
        task = build_task(config, Path(name))
        sizes = _sizes(config)
        torch.manual_seed(config.train.seed)
        model = task.build(config.model, sizes)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    device = choose_device(config.train.device)
    config = resolve_batches(config, model, task, device)
    return BenchmarkedModel(name, config, task, sizes, model.to(device), _length(length, task, model))


def _sizes(config: Config) -> Sizes:
    """The vocabulary sizes of a recipe; those of a run may be smaller."""
    kind, size = config.data.tokenizer["kind"], config.data.vocabulary
    if kind in ("bytes", "characters"):
        size = ByteTokenizer().size if kind == "bytes" else min(size, CHARACTERS)
    return Sizes(size, size, config.data.shared_vocabulary)


def _length(wanted: int | None, task: Task, model: Network) -> int:
    most = model.longest
    if wanted is None:
        return task.typical_length if most is None else min(task.typical_length, most)
    if most is not None and wanted > most:
        raise ConfigError(f"--length {wanted}: the model has {most} positions; give at most that many tokens")
    return wanted
