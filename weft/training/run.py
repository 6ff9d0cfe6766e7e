"""A run from a configuration to a trained model in its folder."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from weft.config import Config, save_config, save_schema
from weft.errors import ConfigError, WeftError
from weft.models.base import Model
from weft.registry import build
from weft.tasks.base import Setting, Task
from weft.training.distributed import World, start
from weft.training.folder import RunLock, prepare_folder
from weft.training.log import open_log
from weft.training.loop import fit
from weft.training.session import Result

Tell = Callable[[str], None]


def train_run(config: Config, out: Path, *, resume: bool = False, tell: Tell = lambda message: None) -> Result:
    """Trains what `config` describes into the folder `out`; with `resume` goes on where it was stopped.

    A run that fails before its first step leaves no folder behind.
    """
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    world = start(config.train.device)
    said = tell if world.first else (lambda message: None)
    try:
        with contextlib.ExitStack() as stack:
            if world.first:
                prepare_folder(out, resume)
                stack.enter_context(RunLock(out))
            model, task = _prepared(config, out, world, resume, said)
            log = open_log(out, config.train.steps, tensorboard=config.train.tensorboard, first=world.first)
            stack.callback(log.close)
            log.note(_facts(model, task, world))
            result = fit(model, task, config.train, run=out, world=world, dim=model.dim, resume=resume, log=log)
        return result
    finally:
        world.close()


def _prepared(config: Config, out: Path, world: World, resume: bool, tell: Tell) -> tuple[Model, Task]:
    """The task with its data ready and the model with its first weights: the first process writes, then the others read."""
    with contextlib.nullcontext() if resume or not world.first else _undone_on_error(out):
        if world.first:
            save_schema(out)
            save_config(config, out / "config.yaml")
        task: Task = build("weft.tasks:TASKS", config.task, Setting(config, out, tell), where="task")
        if not world.first:
            world.broadcast(None)
        sizes = task.prepare()
        if world.first:
            world.broadcast(None)
        torch.manual_seed(config.train.seed)
        model: Model = build("weft.models:MODELS", config.model, sizes, where="model")
        if config.train.packed and not model.packs:
            raise ConfigError("train.packed: a part of this model does not work on packed rows; set train.packed: false")
        return model, task


@contextlib.contextmanager
def _undone_on_error(out: Path) -> Iterator[None]:
    """The folder was empty before; if nothing was trained it goes again, so that the next try is not refused."""
    try:
        yield
    except (WeftError, KeyboardInterrupt):
        shutil.rmtree(out, ignore_errors=True)
        raise


def _facts(model: Model, task: Task, world: World) -> str:
    facts = {"parameters": model.count_parameters(), **task.describe()}
    where = f"{world.device}" if world.size == 1 else f"{world.size} processes ({world.device.type})"
    return ", ".join(f"{value:,} {name}" for name, value in facts.items()) + f"; on {where}"
