"""The training loop, the same for every task."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from weft.batch import Batch
from weft.config import TrainSection
from weft.data.prefetch import prefetch
from weft.errors import DeviceError, Interrupted
from weft.models.base import Network
from weft.registry import build
from weft.tasks.base import Loss, Task
from weft.training.checkpoint import Trained
from weft.training.compiling import compile_blocks
from weft.training.distributed import World, sum_gradients
from weft.training.ema import Ema
from weft.training.interrupt import Interrupts
from weft.training.log import Log
from weft.training.meter import Meter
from weft.training.optimizer import take_step
from weft.training.replay import Replayed, Work
from weft.training.schedule import Plan, Schedule
from weft.training.session import Result, Session
from weft.training.stream import Update, seed_for, updates


@runtime_checkable
class Refreshes(Protocol):
    """A module that changes its buffers (random features, centroids) between updates, and nowhere else."""

    def refresh(self, generator: torch.Generator) -> None: ...


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
    begun: Callable[[], None] = lambda: None,
) -> Result:
    """Train `model` until all steps are made, or time or patience ends; it then holds the weights that were published.

    The caller holds the `RunLock` of the folder `run`. `dim` is the model's width, for schedules that depend on it.
    `begun` is called when all is loaded and checked, before the first step.
    Nothing waits for the device but the log, validating and saving. A step whose loss or gradient is not finite is
    skipped on the device itself, so the weights are good at all times, and it is enough to look now and then how many
    were skipped.
    """
    _place(model, world.device)
    mine, groups = world.share(config.accumulate), task.parameters(model)
    optimizers = {name: build("weft.training:OPTIMIZERS", config.optimizer, group) for name, group in groups.items()}
    schedule: Schedule = build("weft.training:SCHEDULES", config.schedule, Plan(config.steps, dim))
    ema = Ema(model, config.ema) if config.ema else None
    refreshed = [module for module in model.modules() if isinstance(module, Refreshes)]
    session = Session(run, Trained(model, optimizers, ema), task, config, world, log)
    session.begin(resume)
    begun()
    progress = session.progress
    meter = Meter(list(groups), world.device, progress.skipped, progress.in_row)
    compile_blocks(model, config, world.device)
    backward = worker(model, task, config, world.device)

    with ExitStack() as stack:
        stack.enter_context(session.memory_errors())
        interrupts = stack.enter_context(Interrupts())
        ready = stack.enter_context(closing(_ahead(session, mine)))
        while not session.ended:
            update, work = progress.update + 1, next(ready)
            for place, batch in work.batches:
                torch.manual_seed(seed_for(config.seed, *work.begin, place))
                meter.add(backward(batch, update))
            sums = sum_gradients(groups, meter.take(), world)
            rate = schedule(update)
            norms, bad = change_weights(groups, optimizers, sums, rate, config.clip, keep=isinstance(backward, Replayed))
            if ema is not None:
                ema.update(update)
            _refresh(refreshed, seed_for(config.seed, update))
            meter.settle(sums, norms[0], bad)
            progress.update, progress.position = update, work.after
            session.look_at_clock()
            _report(session, meter, rate)
            with meter.paused():
                stop = _keep(session, meter, interrupts)
            if stop and not session.ended:
                raise Interrupted(f"stopped at step {update} of {config.steps}; go on with `weft train --resume {run}`")
    return session.finish()


def _place(model: nn.Module, device: torch.device) -> None:
    try:
        model.to(device).train()
    except torch.OutOfMemoryError:
        size = sum(tensor.nbytes for tensor in model.state_dict().values()) / 2**30
        hint = "choose a smaller model (model.dim, the layers), or another train.device"
        raise DeviceError(f"{device} has no room for the model's weights, {size:.1f} GiB: {hint}") from None


def _ahead(session: Session, mine: range) -> Generator[Update, None, None]:
    """The updates from where the run stands, made ahead by a thread."""
    stream = updates(session.task, session.progress.position, session.config.accumulate, mine)
    pinned = (work.pin() for work in stream) if session.world.device.type == "cuda" else stream
    # Only what was taken counts: what lies ready when training stops is made again after a resume.
    return prefetch(pinned, 2)


def worker(model: nn.Module, task: Task, config: TrainSection, device: torch.device) -> Work:
    """What does forward and backward of a micro-batch: recorded where batches come in few sizes, else as usual."""
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")

    def work(batch: Batch, update: int) -> list[Loss]:
        return forward_backward(task, model, batch.to(device, non_blocking=True), update, autocast)

    few = config.packed is True or (config.rounded is True and isinstance(model, Network) and model.replays)
    return Replayed(work, device) if device.type == "cuda" and few and task.steady else work


def forward_backward(task: Task, model: nn.Module, batch: Batch, update: int, autocast: torch.autocast) -> list[Loss]:
    """Forward and backward of one micro-batch: gradients are added to the parameters; the losses are given back, detached.

    A loss is computed under autocast, its gradient outside of it.
    """
    found: list[Loss] = []
    losses = task.losses(model, batch, update)
    while True:
        with autocast:
            loss = next(losses, None)
        if loss is None:
            return found
        loss.total.backward()
        metrics = {name: value.detach() for name, value in loss.metrics.items()}
        found.append(replace(loss, total=loss.total.detach(), metrics=metrics))


def change_weights(
    groups: Mapping[str, Sequence[nn.Parameter]],
    optimizers: Mapping[str, Optimizer],
    sums: Tensor,
    rate: float,
    largest: float,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """One step of every optimiser, its gradients scaled down to the norm `largest`; none if a sum or a norm is not finite.

    Gradients are dropped then, or (`keep`) set to zero. Gives the norms, one a group, and 1.0 if there was no step, else 0.0.
    """
    norms = torch.stack([_clip(group, largest) for group in groups.values()])
    bad = 1 - (sums.isfinite().all() & norms.isfinite().all()).float()
    for optimizer in optimizers.values():
        take_step(optimizer, rate, bad)
        optimizer.zero_grad(set_to_none=not keep)
    return norms, bad


def _refresh(modules: Sequence[Refreshes], seed: int) -> None:
    """Let modules change their buffers, by numbers that depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    for module in modules:
        module.refresh(generator)


def _report(session: Session, meter: Meter, rate: float) -> None:
    """Write a line of the log where one is due, and stop where too many steps in a row were skipped."""
    config, progress = session.config, session.progress
    if session.ended or _due(min(config.log_every, config.max_bad_steps), progress.update):
        session.check(meter.health())
    if session.ended or _due(config.log_every, progress.update):
        values = meter.read(session.world, config.steps - progress.update)
        session.log.train(progress.update, lr=rate, skipped=progress.skipped, seconds=session.seconds, **values)


def _keep(session: Session, meter: Meter, interrupts: Interrupts) -> bool:
    """Validate and save where it is due. True if a signal asked for the end, in which case the step was saved."""
    config, update = session.config, session.progress.update
    better = (session.ended or _due(config.validate_every, update)) and session.validate()
    stop = session.world.any(interrupts.asked)
    if session.ended or stop or (better and config.keep_best) or _due(config.save_every, update):
        session.check(meter.health())
        session.save()
    return stop


def _clip(group: Sequence[nn.Parameter], largest: float) -> Tensor:
    """Scale the gradients down to the norm `largest` (0: leave them). Gives the norm they had."""
    norm = get_total_norm([parameter.grad for parameter in group if parameter.grad is not None])
    if largest:
        clip_grads_with_norm_(group, largest, norm)
    return norm


def _due(every: int, update: int) -> bool:
    return every > 0 and update % every == 0
