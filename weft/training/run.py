"""A run from a configuration to a trained model in its folder."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from weft.config import Config, save_config, save_schema
from weft.errors import ConfigError, Interrupted, RunError
from weft.kernels import modern
from weft.models.base import Network, Sizes
from weft.registry import build
from weft.tasks.base import Setting, Task
from weft.training import checkpoint
from weft.training.distributed import World, start
from weft.training.folder import RunLock, prepare_folder
from weft.training.log import open_log
from weft.training.loop import fit
from weft.training.session import Result

Tell = Callable[[str], None]
T = TypeVar("T")


def train_run(config: Config, out: Path, *, resume: bool = False, tell: Tell = lambda message: None) -> Result:
    """Trains what `config` describes into the folder `out`; with `resume` goes on where it was stopped.

    A run that fails before its first step leaves no folder behind; one that cannot be resumed stays as it was.
    """
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    world = start(config.train.device)
    out = world.broadcast(out)  # the others may have chosen another folder, seeing that the first had made this one
    try:
        result = _train(config, out, resume, world, tell if world.first else (lambda message: None))
    except Interrupted:
        world.close()  # the others wait here until the first has saved; after any other error nobody can be waited for
        raise
    world.close()
    return result


def _train(config: Config, out: Path, resume: bool, world: World, tell: Tell) -> Result:
    with contextlib.ExitStack() as stack:

        def prepared() -> tuple[Network, Task]:
            if world.first:
                stack.enter_context(_folder(config, out, resume))
            task: Task = build("weft.tasks:TASKS", config.task, Setting(config, out, tell), where="task")
            return _model(config, task, world.device), task

        def begun() -> None:
            if world.first:
                save_config(config, out / "config.yaml")

        model, task = _in_turn(world, prepared)
        log = open_log(out, config.train.steps, tensorboard=config.train.tensorboard, first=world.first)
        stack.callback(log.close)
        log.note(_facts(model, task, world))
        return fit(model, task, config.train, run=out, world=world, dim=model.dim, resume=resume, log=log, begun=begun)


def _in_turn(world: World, work: Callable[[], T]) -> T:
    """`work` in the first process, then in the others, which find its files made. Where it fails, nobody is left waiting."""
    if not world.first:
        if world.broadcast(False):
            return work()
        raise RunError(f"process {world.rank} stops: the first process could not begin, and says why")
    ready = False
    try:
        found = work()
        ready = True
        return found
    finally:
        world.broadcast(ready)


def _model(config: Config, task: Task, device: torch.device) -> Network:
    """The model with its first weights, for the task's data, which is made ready here."""
    with torch.device("meta"):
        # A model without weights or data: what is wrong with it is said before a large corpus is read.
        outline = task.build(config.model, Sizes(8, 8, config.data.shared_vocabulary))
    task.check_length(outline, config.data.max_length)
    if config.data.valid:
        task.measure(config.train.best_by)
    settle_batches(config, outline, task, device)
    sizes = task.prepare()
    torch.manual_seed(config.train.seed)
    return task.build(config.model, sizes)


def settle_batches(config: Config, outline: Network, task: Task, device: torch.device) -> None:
    """Whether rows are packed, or rounded, once and for all: where a resumed run goes on in its data depends on it."""
    train = config.train
    # The device and the task are such that work on batches of one size can be recorded.
    repeats = task.steady and device.type == "cuda" and train.precision == "bf16"
    fits = outline.longest is None or task.widest(config.data.max_length) <= outline.longest
    if train.packed == "auto":
        train.packed = repeats and modern(device) and outline.packs and not outline.packs_square
    if train.rounded == "auto":
        train.rounded = repeats and outline.replays and fits and not train.packed
    if train.packed and not outline.packs:
        raise ConfigError("train.packed: a part of this model does not work on packed rows; set train.packed: false")
    if train.rounded and not fits:
        raise ConfigError(
            f"train.rounded: texts of {config.data.max_length} tokens would be given more places than the model's "
            f"{outline.longest}; set train.rounded: false, or lower data.max_length"
        )


@contextlib.contextmanager
def _folder(config: Config, out: Path, resume: bool) -> Iterator[None]:
    """The run's folder, locked. What a new run has written goes again if it fails before anything was trained."""
    was_there = out.is_dir()
    prepare_folder(out, resume)
    with RunLock(out):
        try:
            if not resume:
                save_schema(out)
                save_config(config, out / "config.yaml")
            yield
        except BaseException:
            if not resume and _untrained(out):
                shutil.rmtree(out, ignore_errors=True)
                if was_there:
                    out.mkdir(exist_ok=True)
            raise


def _untrained(run: Path) -> bool:
    """Whether a run has neither a checkpoint nor a line in its log."""
    log = run / "log.jsonl"
    return checkpoint.latest(run) is None and not (log.exists() and log.stat().st_size)


def _facts(model: Network, task: Task, world: World) -> str:
    facts = {"parameters": model.count_parameters(), **task.describe()}
    where = f"{world.device}" if world.size == 1 else f"{world.size} processes ({world.device.type})"
    return ", ".join(f"{value:,} {name}" for name, value in facts.items()) + f"; on {where}"
