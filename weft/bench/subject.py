"""What is measured: the model of a run, or that of a recipe with its first weights. No data is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from weft.config.sections import Config, load_config
from weft.data.symbols import ByteTokenizer
from weft.errors import ConfigError
from weft.models.base import Network, Sizes
from weft.runs.device import choose_device
from weft.runs.opening import build_task, open_run
from weft.tasks.base import Task
from weft.tasks.classification import ClassificationTask
from weft.tasks.language_model import LanguageModelTask
from weft.training.run import resolve_batches

SENTENCE, TEXT = 32, 256
"""Tokens of a made-up sentence, and of a text that is to be given a label, unless the configuration allows fewer."""

CHARACTERS = 100
"""Different characters that a text is taken to have, where a recipe only says how many there are at most."""


@dataclass(frozen=True)
class Subject:
    """A model on its device, the task that gives it batches of `length` tokens a row, and how large its vocabularies are."""

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
        """Those of a training batch."""
        return max(1, self.config.train.batch_tokens // self.length)


def open_subject(name: str, sets: Sequence[str] = (), length: int | None = None) -> Subject:
    """That of a run folder, or of a recipe or a YAML file; `sets` are written over its configuration."""
    if Path(name).is_dir():
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
    return Subject(name, config, task, sizes, model.to(device), _length(length, config, task, model))


def _sizes(config: Config) -> Sizes:
    """The vocabularies that a recipe asks for; a run's own may be smaller."""
    kind, size = config.data.tokenizer["kind"], config.data.vocabulary
    if kind in ("bytes", "characters"):
        size = ByteTokenizer().size if kind == "bytes" else min(size, CHARACTERS)
    return Sizes(size, size, config.data.shared_vocabulary)


def _length(wanted: int | None, config: Config, task: Task, model: Network) -> int:
    most = model.longest
    if wanted is None:
        usual = TEXT if isinstance(task, ClassificationTask) else SENTENCE
        found = task.segment if isinstance(task, LanguageModelTask) else min(usual, config.data.max_length)
        return found if most is None else min(found, most)
    if most is not None and wanted > most:
        raise ConfigError(f"--length {wanted}: the model has {most} positions; ask for at most so many tokens")
    return wanted
