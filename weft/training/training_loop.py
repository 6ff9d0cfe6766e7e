"""The training loop, the same for every task."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from weft.config.sections import TrainSection
from weft.data.batch import Batch, Position
from weft.data.batching import prefetch
from weft.errors import DataError, DeviceError, Interrupted
from weft.garbage_collection import collect_rarely
from weft.tasks.base import ScheduledTask, Task
from weft.training.compile_and_cuda_graphs import compile_blocks
from weft.training.distributed import World
from weft.training.log import Log
from weft.training.lr_schedules import build_schedule
from weft.training.memory import BackwardPasses
from weft.training.update_step import Meter, UpdateStep
from weft.training.validate_and_save import Interrupts, Result, Session
from weft.training.verdict import Floor

FIRST_STEP = {False: "computing the first step", True: "compiling the model, which takes up to a minute"}
"""The first activity of training, by whether the model is compiled."""


@runtime_checkable
class RefreshesBuffers(Protocol):
    """A module that changes its buffers (random features, centroids) between updates only."""

    def refresh(self, generator: torch.Generator) -> None: ...


@dataclass(frozen=True)
class Update:
    """The data of one process for one update.

    begin    position of the update in the stream of all batches
    batches  this process's micro-batches, each with its index 0 … accumulate − 1 in the update
    after    position of the next update
    """

    begin: Position
    batches: list[tuple[int, Batch]]
    after: Position

    def pin(self) -> Update:
        """A copy in pinned memory, for asynchronous copies to a GPU."""
        return Update(self.begin, [(place, batch.pin()) for place, batch in self.batches], self.after)


def fit(
    model: nn.Module,
    task: Task,
    config: TrainSection,
    *,
    run: Path,
    world: World,
    dim: int,
    resume: bool,
    log: Log,
    floor: Floor | None = None,
    validate_start: bool = False,
    validation: float = 0.0,
    on_start: Callable[[], None] = lambda: None,
) -> Result:
    """Trains `model` until the last step, or until time or patience runs out. It then holds the published weights.

    The caller holds the `RunLock` of the folder `run`. `dim` is the model width, for schedules that depend on it. `floor`
    is what the verdict compares the result with, `validation` the seconds that a validation is expected to take. `on_start`
    is called before the first step, when all is loaded and checked. Only logging, validating and saving wait for the
    device, and updates if time is limited. A step with a non-finite loss or gradient is skipped on the device itself, so
    the weights are always good. `validate_start`: the initial weights are scored, and may turn out to be the best.
    """
    step, mine = UpdateStep(_move(model, world.device), task, config, world), world.share(config.accumulate)
    schedule = build_schedule(config, dim)
    refreshed = [module for module in model.modules() if isinstance(module, RefreshesBuffers)]
    session = Session(run, step.state, task, config, world, log, floor=floor, validation=validation)
    progress = session.begin(resume)
    on_start()
    step.report = log.note
    step.start(progress.skipped, progress.in_row)
    backward = BackwardPasses(step, partial(seed_for, config.seed), log.note, progress.parts)
    log.phase(FIRST_STEP[step.sharded is None and compile_blocks(model, config, world.device)])

    began = session.seconds
    with session.memory_errors(), collect_rarely(), Interrupts() as interrupts, closing(_prefetched(session, mine)) as stream:
        if validate_start and not progress.update:
            session.score_start()
            began = session.seconds
        while not session.ended:
            update, data = progress.update + 1, next(stream)
            if step.enter(update):
                log.note(f"step {update}: {step.layers.describe()}")
            if isinstance(task, ScheduledTask):
                task.on_update_start(update)
            backward(update, data.begin, data.batches)
            progress.parts = backward.parts
            before, scheduled = session.advance(update)
            rate = schedule(scheduled)
            step.finish(update, rate, scheduled)
            generator = torch.Generator().manual_seed(seed_for(config.seed, update))
            for module in refreshed:
                module.refresh(generator)
            progress.update, progress.position = update, data.after
            _report(session, step, rate)
            session.position.add_update(session.seconds - began)
            with step.meter.paused():
                _validate_and_save(session, step.meter, interrupts, before)
            began = session.seconds
    return session.finish()


def _move(model: nn.Module, device: torch.device) -> nn.Module:
    try:
        return model.to(device).train()
    except torch.OutOfMemoryError:
        size = sum(tensor.nbytes for tensor in model.state_dict().values()) / 2**30
        hint = "choose a smaller model (model.dim, number of layers), or another train.device"
        raise DeviceError(f"{device} has too little memory for the model's weights, {size:.1f} GiB: {hint}") from None


def _prefetched(session: Session, mine: range) -> Generator[Update, None, None]:
    """The data of the next updates, prepared ahead by a thread."""
    stream = updates(session.task, session.progress.position, session.config.accumulate, mine)
    pinned = (data.pin() for data in stream) if session.world.device.type == "cuda" else stream
    # Data that was prepared but not used when training stops is prepared again on resume.
    return prefetch(pinned, 2)


def updates(task: Task, position: Position, accumulate: int, mine: range) -> Iterator[Update]:
    """Divides the stream from `position` on into updates of `accumulate` batches, and keeps those with an index in `mine`."""
    stream = task.batches(position)
    begin = position
    while True:
        kept: list[tuple[int, Batch]] = []
        for place in range(accumulate):
            item = next(stream, None)
            if item is None:
                raise DataError(f"the task ran out of training batches after {begin}; the stream of batches must be endless")
            batch, after = item
            if place in mine:
                kept.append((place, batch))
        yield Update(begin, kept, after)
        begin = after


def seed_for(seed: int, *place: int) -> int:
    """A seed for torch that depends only on `seed` and a position: the same in every process and after resuming."""
    return int(np.random.SeedSequence([seed, *place]).generate_state(1, np.uint64)[0] >> 1)


def _report(session: Session, step: UpdateStep, rate: float) -> None:
    """Counts the step and its time, writes a log line if one is due, and stops if too many consecutive steps were skipped.

    A limited time is planned by what the device has done, so it may only be a little behind.
    """
    config, progress = session.config, session.progress
    if config.seconds:
        step.queued.wait()
    session.check_time()
    session.log.step(progress.update)
    if session.ended or _due(min(config.log_every, config.max_bad_steps), progress.update):
        session.check(*step.meter.health())
    if session.ended or _due(config.log_every, progress.update):
        time_left = max(0.0, config.seconds - session.seconds) if config.budget == "time" else None
        session.note_energy()
        values = step.meter.read(session.world, config.steps - session.position.value, time_left)
        session.log.train(progress.update, lr=rate, skipped=progress.skipped, seconds=session.seconds, **values)


def _validate_and_save(session: Session, meter: Meter, interrupts: Interrupts, before: float) -> None:
    """Validates and saves if it is time to. After a signal, raises Interrupted once a checkpoint is saved.

    before: the position in the schedule before the update.
    """
    config, update = session.config, session.progress.update
    due = _crossed(config.validate_every, before, session.position.value) and session.validation_pays()
    better = (session.last_validation_fits() if session.ended else due) and session.validate()
    stop = session.world.any(interrupts.requested)
    saving = _crossed(config.save_every, before, session.position.value)
    if session.ended or stop or (better and config.keep_best) or saving:
        session.check(*meter.health())
        session.check_weights()
        session.save()
    if stop and not session.ended:
        hint = f"continue with `weft train --resume {session.run}`"
        raise Interrupted(f"stopped at step {update} of {config.steps}; {hint}")


def _due(every: int, update: int) -> bool:
    return every > 0 and update % every == 0


def _crossed(every: int, before: float, after: float) -> bool:
    """Whether a multiple of `every` lies behind `before` and not behind `after`, two positions in the schedule."""
    return every > 0 and after // every > before // every
