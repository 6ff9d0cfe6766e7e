"""Trains a run, from its settings to a trained model in its folder: `weft.train`.

The steps, each in one place: load the configuration (`train`); choose what it leaves open, lower what the steps do not allow,
and build task and model (`weft.training.prepare_run`); write the configuration, once; train (`weft.training.training_loop`). A
resumed run takes the same way, with checks in place of choices. `weft.training.train_in_folder` has these steps in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from weft.config.sections import Config, load_config, override_texts
from weft.errors import ConfigError, Interrupted
from weft.runs.open_run import Report, run_config, silent
from weft.runs.run_folder import CONFIG, unbegun_request
from weft.runs.warm_start import started_config
from weft.training.auto.plan_for_time import AUTO, seconds_of
from weft.training.distributed import join_processes, restarts
from weft.training.time_budget import TimeBudget
from weft.training.train_in_folder import train_in_folder
from weft.training.training_request import TrainingRequest
from weft.training.validate_and_save import Result


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
    clean: bool = True,
    tell: Report = silent,
) -> Result:
    """Trains a model in the run folder `out` and returns the result.

    `recipe` is the name of a recipe, a YAML file or a `Config`; "auto", the default, chooses all sizes from the data. `start`
    is a run to fine-tune: the new run takes its model, tokenizers and weights, and everything else from the recipe, by default
    the configuration of that run. With `resume`, `out` is the run to continue. `time` is how long the whole call may take:
    "20m", "1h30m", or seconds. `teacher` is a run whose translations replace the targets of `data`. `set` overrides settings
    like `--set`: {"train.steps": 500} or ["train.steps=500"]. `clean=False` keeps the flawed pairs of noisy data, which `auto`
    leaves out. `tell` receives messages before training starts. Processes that torchrun has started again after one of them was
    lost continue the run in `out`.
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
        request = TrainingRequest(load_config(recipe, sets), recipe == AUTO, sets, seconds, clean=clean)
    request = replace(request, config=request.config.with_data(data, valid, teacher).absolute())
    return train_run(request, Path(out) if out else free_folder(recipe or AUTO), resume=resume, report=tell)


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
        result = train_in_folder(request, out, resume, world, report if world.first else silent, clock)
    except Interrupted:
        world.close()  # wait until the first process has saved; after any other error, waiting could last forever
        raise
    world.close()
    return result
