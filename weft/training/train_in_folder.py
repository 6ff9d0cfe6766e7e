"""The training of one request, in order: choices, preparations, checks, the training loop and the model card."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from weft.runs.open_run import Report
from weft.runs.run_folder import locked_folder
from weft.runs.warm_start import resolve_start, start_model, starts_with_a_model
from weft.training.auto.plan_for_time import chooser
from weft.training.distributed import World
from weft.training.log import open_log
from weft.training.model_card import write_card
from weft.training.prepare_run import Prepared, lower_to_steps, prepare_in_turn, prepare_run, summary
from weft.training.resumption import begun, check_identity, check_resumable, save_settings, seconds_trained
from weft.training.time_budget import TimeBudget
from weft.training.training_loop import fit
from weft.training.training_request import TrainingRequest
from weft.training.validate_and_save import Result
from weft.training.verdict import find_floor


def train_in_folder(
    request: TrainingRequest, out: Path, resume: bool, world: World, report: Report, clock: TimeBudget | None
) -> Result:
    """Trains the model of a request in the folder `out`, or resumes it there.

    clock: the time that the whole call may take.
    """
    notes: list[str] = []
    config = request.config
    choose = chooser(request.auto, request.sets, clock, report, fine_tune=request.fine_tune, clean=request.clean)
    with contextlib.ExitStack() as stack:

        def prepare_first() -> Prepared:
            stack.enter_context(locked_folder(out, resume, request.data()))
            if resume:
                notes.extend(check_resumable(out, config))
                return prepare_run(config, out, world.device, report)
            chosen = choose(config, out, world)
            return prepare_run(resolve_start(lower_to_steps(chosen, report)), out, world.device, report)

        def write_settings() -> None:
            if world.first:
                save_settings(out, task.config, task.identity(), resume=resume)

        task, model = prepare_in_turn(world, prepare_first, lambda resolved: prepare_run(resolved, out, world.device))
        train, floor = task.config.train, find_floor(task, model) if world.first else None
        begins = world.broadcast(not begun(out))  # also if a resumed run has not saved anything yet
        notes += start_model(model, task.config, out, begins=begins)
        if resume and world.first:
            notes += check_identity(out, task.identity())
        unit = task.info.count_unit.split()[-1]
        timed = train.budget == "time" or (resume and clock is not None)
        steps = 0 if timed else train.steps
        options: dict[str, Any] = {"unit": unit, "tensorboard": train.tensorboard, "trackers": task.config}
        log = open_log(out, steps, first=world.first, **options)
        stack.callback(log.close)
        where = f"{world.device}" if world.size == 1 else f"{world.size} processes ({world.device.type})"
        for note in (*notes, f"{summary(task, model)}; on {where}"):
            log.note(note)
        if clock is not None:
            task.config = task.config.replaced(world.broadcast(_time_left(clock, out, resume)))
            train = task.config.train
        start = starts_with_a_model(task.config)
        options = {"floor": floor, "validate_start": start, "on_start": write_settings}
        options["validation"] = clock.validation if clock is not None else 0.0
        result = fit(model, task, train, run=out, world=world, dim=model.dim, resume=resume, log=log, **options)
        if world.first:
            write_card(out, task, model, floor=floor, device=world.device)
        return result


def _time_left(clock: TimeBudget, out: Path, resume: bool) -> dict[str, Any]:
    """The settings of the time left after the preparations, plus the time that a resumed run has already used."""
    if not resume:
        return {"train.seconds": clock.left()}
    return {"train.seconds": seconds_trained(out) + clock.left(), "train.budget": "time"}
