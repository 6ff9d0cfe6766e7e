"""Lowers sizes of a configuration that are larger than its number of steps allows.

Sizes that the data limits, such as the vocabulary, are lowered by the task when it prepares the data (`Task.limit`).

Trains a run: from a configuration to a trained model in its folder.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from weft.config.sections import Config, load_config, save_config, save_schema
from weft.errors import ConfigError, Interrupted, RunError
from weft.layers.kernels import computes_bf16, modern
from weft.models.base import Network
from weft.runs.distillation_and_backtranslation import OpenTeacher
from weft.runs.open_run import build_network, build_task, start_from_base
from weft.runs.run_folder import CONFIG, LOG, MODEL, RunLock, prepare_folder
from weft.runs.warm_start_weights import start_vectors
from weft.tasks.base import Task, check_length
from weft.training import checkpoint
from weft.training.checkpoint import check_changes, check_data, check_identity, remember
from weft.training.distributed import World, start
from weft.training.log import open_log
from weft.training.loop import fit
from weft.training.session import Result
from weft.training.warm_start_settings import check_start


def fit_steps(config: Config, tell: Callable[[str], None]) -> Config:
    """Shortens a warm-up that would never end, and an average of more checkpoints than there will be. Says each change.

    A warm-up as long as the training, or longer, becomes half of the steps.
    """
    train = config.train
    changes: dict[str, int] = {}
    if train.schedule.get("warmup", 0) >= train.steps:
        changes["train.schedule.warmup"] = train.steps // 2
        tell(f"train.schedule.warmup: {train.steps // 2:,}, because there are {train.steps:,} steps")
    saved = -(-train.steps // min(train.save_every, train.validate_every or train.save_every))
    if train.average_last > saved:
        changes["train.average_last"] = saved
        tell(f"train.average_last: {saved:,}, because {train.steps:,} steps give no more checkpoints")
    return config.replaced(changes) if changes else config


Tell = Callable[[str], None]
T = TypeVar("T")


Choose = Callable[[Config, Path, World], Config]
"""Completes the configuration of a new run, given its folder and the processes that will train it."""


def train_run(
    config: Config, out: Path, *, resume: bool = False, tell: Tell = lambda message: None, choose: Choose | None = None
) -> Result:
    """Trains the model of `config` in the folder `out`, or resumes it where it stopped, if its settings allow it.

    A new run that fails before its first step leaves no folder behind. A run that cannot be resumed stays unchanged. `choose`
    may first complete the configuration of a new run, in the first process and inside the folder.
    """
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    config = config.absolute()
    world = start(config.train.device)
    out = world.broadcast(out)  # other processes may have chosen another folder, because the first had created this one
    try:
        result = _train(config, out, resume, world, tell if world.first else (lambda message: None), choose)
    except Interrupted:
        world.close()  # wait until the first process has saved; after any other error, waiting could last forever
        raise
    world.close()
    return result


def _train(config: Config, out: Path, resume: bool, world: World, tell: Tell, choose: Choose | None) -> Result:
    notes: list[str] = []
    with contextlib.ExitStack() as stack:

        def prepare() -> tuple[Config, Task, Network]:
            if world.first:
                stack.enter_context(_locked_folder(out, resume))
            if resume:
                if world.first:
                    _check_checkpoints(out)
                    notes.extend(check_changes(out, config))
                    check_data(out, config)
                return prepare_run(config, out, world.device, tell)
            if world.first:
                chosen = check_start(fit_steps(choose(config, out, world) if choose else config, tell))
                save_schema(out)
                save_config(chosen, out / CONFIG)
            return prepare_run(load_config(out / CONFIG), out, world.device, tell)

        def on_start() -> None:
            if world.first:
                save_config(resolved, out / CONFIG)
                remember(out, resolved, task.identity())

        resolved, task, model = _in_turn(world, prepare)
        train = resolved.train
        begins = world.broadcast(checkpoint.latest(out) is None)  # also if a resumed run has not saved anything yet
        if resolved.start.run and (begins or resolved.model["lora"]):  # a checkpoint has all weights that are not borrowed
            notes.append(start_from_base(model, resolved, out))
        if resolved.start.vectors and begins:
            notes.append(start_vectors(model, resolved, out))
        if resume and world.first:
            notes.extend(check_identity(out, task.identity()))
        unit = task.count_unit.split()[-1]
        log = open_log(out, train.steps, unit=unit, tensorboard=train.tensorboard, first=world.first)
        stack.callback(log.close)
        for note in notes:
            log.note(note)
        facts = {"parameters": model.count_parameters(), **_count_trained(model), **task.describe()}
        where = f"{world.device}" if world.size == 1 else f"{world.size} processes ({world.device.type})"
        log.note(", ".join(f"{value:,} {name}" for name, value in facts.items()) + f"; on {where}")
        return fit(model, task, train, run=out, world=world, dim=model.dim, resume=resume, log=log, on_start=on_start)


def _check_checkpoints(out: Path) -> None:
    """Raises RunError if a run has weights that training would replace instead of continuing with them."""
    if checkpoint.latest(out) is None and (out / MODEL).exists():
        raise RunError(
            f"{out}: it has weights but no checkpoint, so training cannot continue where it stopped; train a new run that "
            f"starts with these weights: `weft train --from {out} --out FOLDER`"
        )


def _count_trained(model: Network) -> dict[str, int]:
    """The number of parameters that are trained, if some are borrowed."""
    trained = sum(weight.numel() for name, weight in model.named_parameters() if name not in model.borrowed)
    return {"of them trained": trained} if model.borrowed else {}


def _in_turn(world: World, work: Callable[[], T]) -> T:
    """Does `work` in the first process, then in the others, which use its files. If it fails, no process waits forever."""
    if not world.first:
        if world.broadcast(False):
            return work()
        raise RunError(f"process {world.rank} stops because the first process failed to start; see its error message")
    ready = False
    try:
        result = work()
        ready = True
        return result
    finally:
        world.broadcast(ready)


def prepare_run(
    config: Config, out: Path, device: torch.device, tell: Tell = lambda message: None
) -> tuple[Config, Task, Network]:
    """The resolved configuration, the task with its data, and the model with its initial weights."""
    task = build_task(config, out, tell)
    with torch.device("meta"):
        # A model without weights or data, so that errors in its configuration show before a large corpus is read.
        outline = build_network(task, config, task.placeholder_sizes())
    check_length(task, outline)
    if config.data.validates:
        task.measure(config.train.best_by)
    if config.train.precision == "bf16" and not computes_bf16(device):
        tell("train.precision: this CPU has no arithmetic in bf16, so training uses float32")
        config = config.replaced({"train.precision": "float32"})
    config = resolve_batches(config, outline, task, device)
    task = build_task(config, out, tell, OpenTeacher())
    sizes = task.prepare()
    config = task.config  # the data may have lowered some sizes
    tell("building the model")
    torch.manual_seed(config.train.seed)
    return config, task, build_network(task, config, sizes)


def resolve_batches(config: Config, outline: Network, task: Task, device: torch.device) -> Config:
    """Resolves `auto` in train.packed and train.rounded. A resumed run keeps them: its position in the data depends on them."""
    packed, rounded = config.train.packed, config.train.rounded
    # Whether work on batches of one size can be captured on this device and for this task.
    repeats = task.capturable and device.type == "cuda" and config.train.precision == "bf16"
    fits = outline.longest is None or task.row_length(config.data.max_length, rounded=True) <= outline.longest
    if packed == "auto":
        packed = repeats and modern(device) and outline.packs and not outline.packs_square
    if rounded == "auto":
        rounded = repeats and outline.replays and fits and not packed
    if packed and not outline.packs:
        raise ConfigError("train.packed: a part of this model does not support packed rows; set train.packed: false")
    if rounded and not fits:
        raise ConfigError(
            f"train.rounded: texts of {config.data.max_length} tokens would be padded to more than the model's "
            f"{outline.longest} positions; set train.rounded: false, or lower data.max_length"
        )
    return config.replaced({"train.packed": packed, "train.rounded": rounded})


@contextlib.contextmanager
def _locked_folder(out: Path, resume: bool) -> Iterator[None]:
    """Locks the folder of the run. If a new run fails before anything was trained, its files are removed again."""
    was_there = out.is_dir()
    prepare_folder(out, resume)
    with RunLock(out):
        try:
            yield
        except BaseException:
            logged = (out / LOG).exists() and (out / LOG).stat().st_size
            if not resume and not logged and checkpoint.latest(out) is None:
                shutil.rmtree(out, ignore_errors=True)
                if was_there:
                    out.mkdir(exist_ok=True)
            raise
