"""Trains a run, from its settings to a trained model in its folder: `weft.train`.

The steps, each in one place: load the configuration (`train`); choose what it leaves open, lower what the steps do not allow,
and build task and model (`weft.training.prepare_run`); write the configuration, once; train (`weft.training.training_loop`). A
resumed run takes the same way, with checks in place of choices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from weft.config.sections import Config, load_config, override_texts
from weft.errors import ConfigError, Interrupted, RunError
from weft.runs.open_run import Report, run_config, silent
from weft.runs.run_folder import CONFIG, locked_folder, unbegun_request
from weft.runs.warm_start import resolve_start, start_model, started_config, starts_with_a_model
from weft.training import checkpoint
from weft.training.auto.plan_for_time import AUTO, chooser, seconds_of
from weft.training.checkpoint import check_identity, check_resumable, save_settings
from weft.training.distributed import World, join_processes, restarts
from weft.training.log import open_log
from weft.training.memory import resolve_batch_tokens
from weft.training.model_card import write_card
from weft.training.prepare_run import Prepared, lower_to_steps, prepare_run, summary
from weft.training.time_budget import TimeBudget
from weft.training.trackers.base import open_trackers
from weft.training.training_loop import fit
from weft.training.validate_and_save import Result
from weft.training.verdict import find_floor


def train(
    recipe: str | Path | Config | None = None,
    *,
    start: str | Path | None = None,
    data: str | Sequence[str | Mapping[str, Any]] = (),
    valid: str | Sequence[str | Mapping[str, Any]] = (),
    out: str | Path | None = None,
    time: str | float | None = None,
    teacher: str | Path | None = None,
    resume: bool = False,
    set: Mapping[str, Any] | Sequence[str] = (),
    tell: Report = silent,
) -> Result:
    """Trains a model in the run folder `out` and returns the result.

    `recipe` is the name of a recipe, a YAML file or a `Config`; "auto", the default, chooses all sizes from the data. `start`
    is a run to fine-tune: the new run takes its model, tokenizers and weights, and everything else from the recipe, by default
    the configuration of that run. With `resume`, `out` is the run to continue. `time` is how long the whole call may take:
    "20m", "1h30m", or seconds. `teacher` is a run whose translations replace the targets of `data`. `set` overrides settings
    like `--set`: {"train.steps": 500} or ["train.steps=500"]. `tell` receives messages before training starts. Processes that
    torchrun has started again after one of them was lost continue the run in `out`.
    """
    if restarts() and out is not None and (Path(out) / CONFIG).exists():
        # The settings of the run are those that were requested, resolved.
        resume, data, valid, teacher, time, set = True, (), (), None, None, ()
    seconds, sets = seconds_of(time), override_texts(set)
    if resume:
        if out is None:
            raise ConfigError("`resume` needs `out`, the folder of the run to continue")
        if saved := unbegun_request(Path(out)):
            resume, request = False, TrainingRequest.load(saved, sets)
        else:
            request = TrainingRequest(run_config(Path(out), sets))
        request = replace(request, seconds=seconds or request.seconds)
    elif start is not None:
        if isinstance(recipe, Config) or recipe == AUTO:
            raise ConfigError(
                "a run that starts from another one needs a recipe with a name, or a YAML file; auto chooses a model"
            )
        config = started_config(Path(start), recipe, sets, new_data=bool(data), new_valid=bool(valid))
        request = TrainingRequest(config, False, sets, seconds, fine_tune=recipe is None)
        recipe = recipe or Path(start) / CONFIG
    elif isinstance(recipe, Config):
        if sets:
            raise ConfigError("`set` is for recipes and files; use Config.replaced instead")
        request = TrainingRequest(recipe, False, sets, seconds)
    else:
        recipe = AUTO if recipe is None else recipe
        request = TrainingRequest(load_config(recipe, sets), recipe == AUTO, sets, seconds)
    request = replace(request, config=request.config.with_data(data, valid, teacher).absolute())
    return train_run(request, Path(out) if out else free_folder(recipe or AUTO), resume=resume, report=tell)


@dataclass(frozen=True)
class TrainingRequest:
    """The request for a run, before anything is chosen. A run that was killed before its first step is resumed from it.

    auto: choose all sizes from the data · sets: settings that the user has fixed · seconds: how long the call may take ·
    fine_tune: choose what suits a run that starts from another one, and has its settings
    """

    config: Config
    auto: bool = False
    sets: Sequence[str] = ()
    seconds: float | None = None
    fine_tune: bool = False

    @staticmethod
    def load(data: Mapping[str, Any], sets: Sequence[str] = ()) -> TrainingRequest:
        """The request that `data` returned, with further settings."""
        config = load_config(data["config"], sets)
        return TrainingRequest(config, data["auto"], [*data["sets"], *sets], data["seconds"], data["fine_tune"])

    def data(self) -> dict[str, Any]:
        """The request as plain data."""
        return {**vars(self), "config": self.config.model_dump(), "sets": [*self.sets]}


def free_folder(recipe: str | Path | Config, base: str | Path = "runs") -> Path:
    """A folder for a new run, named after the recipe or file, with a number if that folder exists."""
    path = Path("run" if isinstance(recipe, Config) else recipe)
    name = path.parent.name if path.name == CONFIG and path.parent.name else path.stem
    folder, number = Path(base) / name, 2
    while folder.exists():
        folder, number = Path(base) / f"{name}-{number}", number + 1
    return folder


def train_run(request: TrainingRequest, out: Path, *, resume: bool = False, report: Report = silent) -> Result:
    """Trains the model of a request in the folder `out`, or resumes it where it stopped, if its settings allow it.

    A new run that fails before its first step leaves no folder behind. A run that cannot be resumed stays unchanged.
    """
    train = request.config.train
    if train.threads:
        torch.set_num_threads(train.threads)
    clock = None if request.seconds is None else TimeBudget(request.seconds)
    world = join_processes(train.device)
    out = world.broadcast(out)  # other processes may have chosen another folder, because the first had created this one
    try:
        result = _train(request, out, resume, world, report if world.first else silent, clock)
    except Interrupted:
        world.close()  # wait until the first process has saved; after any other error, waiting could last forever
        raise
    world.close()
    return result


def _train(request: TrainingRequest, out: Path, resume: bool, world: World, report: Report, clock: TimeBudget | None) -> Result:
    notes: list[str] = []
    config = request.config
    choose = chooser(request.auto, request.sets, clock, report, fine_tune=request.fine_tune)
    with contextlib.ExitStack() as stack:

        def prepare_first() -> Prepared:
            stack.enter_context(locked_folder(out, resume, request.data()))
            ready = resolve_batch_tokens(config, world.device, report, chosen=request.auto)
            if resume:
                notes.extend(check_resumable(out, ready))
                return prepare_run(ready, out, world.device, report)
            chosen = choose(ready, out, world) if choose else ready
            return prepare_run(resolve_start(lower_to_steps(chosen, report)), out, world.device, report)

        def write_settings() -> None:
            if world.first:
                save_settings(out, task.config, task.identity(), resume=resume)

        task, model = _in_turn(world, prepare_first, lambda resolved: prepare_run(resolved, out, world.device))
        train, floor = task.config.train, find_floor(task, model) if world.first else None
        begins = world.broadcast(checkpoint.latest(out) is None)  # also if a resumed run has not saved anything yet
        notes += start_model(model, task.config, out, begins=begins)
        if resume and world.first:
            notes += check_identity(out, task.identity())
        unit = task.info.count_unit.split()[-1]
        timed = train.budget == "time" or (resume and clock is not None)
        steps = 0 if timed else train.steps
        trackers = partial(open_trackers, out, task.config)
        log = open_log(out, steps, unit=unit, tensorboard=train.tensorboard, first=world.first, others=trackers)
        stack.callback(log.close)
        where = f"{world.device}" if world.size == 1 else f"{world.size} processes ({world.device.type})"
        for note in (*notes, f"{summary(task, model)}; on {where}"):
            log.note(note)
        if clock is not None:
            task.config = task.config.replaced(world.broadcast(_time_left(clock, out, resume)))
            train = task.config.train
        start = starts_with_a_model(task.config)
        options: dict[str, Any] = {"floor": floor, "validate_start": start, "on_start": write_settings}
        options["validation"] = clock.validation if clock is not None else 0.0
        result = fit(model, task, train, run=out, world=world, dim=model.dim, resume=resume, log=log, **options)
        if world.first:
            write_card(out, task, model, floor=floor, device=world.device)
        return result


def _time_left(clock: TimeBudget, out: Path, resume: bool) -> dict[str, Any]:
    """The settings of the time left after the preparations, plus the time that a resumed run has already used."""
    if not resume:
        return {"train.seconds": clock.left()}
    newest = checkpoint.latest(out)
    before = checkpoint.check(newest)["progress"]["seconds"] if newest else 0.0
    return {"train.seconds": before + clock.left(), "train.budget": "time"}


def _in_turn(world: World, first: Callable[[], Prepared], others: Callable[[Config], Prepared]) -> Prepared:
    """Prepares the run in the first process, then in the others, which take its configuration and its files.

    If the first one fails, no other waits forever.
    """
    if not world.first:
        resolved: Config | None = world.broadcast(None)
        if resolved is None:
            raise RunError(f"process {world.rank} stops because the first process failed to start; see its error message")
        return others(resolved)
    resolved = None
    try:
        task, model = first()
        resolved = task.config
        return task, model
    finally:
        world.broadcast(resolved)
