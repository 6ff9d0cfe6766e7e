"""The training loop, the same for every task. Losses and metrics add up on the device, so that no step waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from weft.config.registry import build
from weft.config.sections import TrainSection
from weft.data.batch import Batch, Position
from weft.data.batching import prefetch
from weft.errors import DataError, DeviceError, Interrupted
from weft.garbage_collection import collect_rarely
from weft.models.base import Network
from weft.runs.run_folder import autocast
from weft.tasks.base import Loss, Task, optimizer_groups
from weft.training.checkpoint import TrainingState
from weft.training.compile_and_cuda_graphs import CudaGraphSteps, Work, compile_blocks
from weft.training.distributed import World, sum_gradients
from weft.training.ema import Ema
from weft.training.gradual_unfreezing import LayerGroups
from weft.training.log import Log
from weft.training.lr_schedules import Schedule, ScheduleContext
from weft.training.optimizer import take_step
from weft.training.session import Interrupts, Result, Session


class Meter:
    """Sums of losses, counts and metrics: of the current update, and of all updates since the last log line.

    A skipped step is counted but adds nothing to the sums.
    """

    def __init__(self, groups: Sequence[str], device: torch.device, skipped: int = 0, in_row: int = 0) -> None:
        self._index = {name: index for index, name in enumerate(groups)}
        self._update = torch.zeros(2, len(groups), dtype=torch.float64, device=device)
        self._window = torch.zeros_like(self._update)
        self._update_metrics: dict[tuple[str, str], Tensor] = {}
        self._metrics: dict[tuple[str, str], Tensor] = {}
        self._norm = torch.zeros((), device=device)
        self._health = torch.tensor([skipped, in_row, in_row], device=device)
        self._clock, self._steps = time.perf_counter(), 0

    def add(self, losses: Iterable[Loss]) -> None:
        """Adds the detached losses of one of this process's micro-batches."""
        for loss in losses:
            index = self._index[loss.optimizer]
            self._update[0, index] += loss.total
            self._update[1, index] += loss.count
            for name, value in loss.metrics.items():
                key = (loss.optimizer, name)
                self._update_metrics[key] = self._update_metrics.get(key, 0) + value

    def take(self) -> Tensor:
        """[2, groups]: this process's losses and counts in the update, which are reset."""
        sums = self._update
        self._update = torch.zeros_like(sums)
        return sums

    def end_update(self, sums: Tensor, norm: Tensor, bad: Tensor) -> None:
        """Ends the update with the `sums` of all processes, its gradient norm, and 1 in `bad` if it was skipped."""
        skipped, in_row, worst = self._health.unbind()
        now = bad.to(self._health.dtype)
        in_row = (in_row + 1) * now
        self._health = torch.stack([skipped + now, in_row, torch.maximum(worst, in_row)])
        self._window += torch.where(bad > 0, 0, sums)
        for key, value in self._update_metrics.items():
            self._metrics[key] = self._metrics.get(key, 0) + torch.where(bad > 0, 0, value)
        self._update_metrics = {}
        self._norm = norm
        self._steps += 1

    def health(self) -> list[int]:
        """Skipped steps: the total, the current run of consecutive ones, and the longest such run. Waits for the device."""
        counts: list[int] = self._health.tolist()
        return counts

    def read(self, world: World, steps_left: int) -> dict[str, float]:
        """The values of a log line, over all processes and all steps since the last line. Waits for the device."""
        totals, counts = self._window.tolist()
        metrics = world.add({f"{group}/{name}": float(value) for (group, name), value in self._metrics.items()})
        seconds = max(time.perf_counter() - self._clock, 1e-9)
        values: dict[str, float] = {}
        for group, index in self._index.items():
            suffix = "" if group == "model" else f"_{group}"
            values[f"loss{suffix}"] = _ratio(totals[index], counts[index])
        for key, value in metrics.items():
            group, _, name = key.partition("/")
            values[name] = _ratio(value, counts[self._index[group]])
        values["tokens_per_second"] = counts[self._index.get("model", 0)] / seconds
        values["grad_norm"] = float(self._norm)
        values["seconds_left"] = steps_left * seconds / max(self._steps, 1)
        self._window.zero_()
        self._metrics = {}
        self._clock, self._steps = time.perf_counter(), 0
        return values

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside the block (validating, saving) does not count as training time."""
        began = time.perf_counter()
        yield
        self._clock += time.perf_counter() - began


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")


FIRST_STEP = {False: "computing the first step", True: "compiling the model, which takes up to a minute"}
"""What training is busy with at first, by whether the model is compiled."""


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
    on_start: Callable[[], None] = lambda: None,
) -> Result:
    """Trains `model` until the last step, or until time or patience runs out. It then holds the published weights.

    The caller holds the `RunLock` of the folder `run`. `dim` is the model width, for schedules that depend on it. `on_start`
    is called before the first step, when everything is loaded and checked. Only logging, validating and saving wait for
    the device. A step with a non-finite loss or gradient is skipped on the device itself, so the weights are always good.
    """
    layers, mine = LayerGroups(_move(model, world.device), config), world.share(config.accumulate)
    schedule: Schedule = build("weft.training:SCHEDULES", config.schedule, ScheduleContext(config.steps, dim))
    groups, specs = optimizer_groups(task, model)
    refreshed = [module for module in model.modules() if isinstance(module, RefreshesBuffers)]
    trained = TrainingState(model, layers.optimizers(groups, specs), Ema(model, config.ema) if config.ema else None)
    session = Session(run, trained, task, config, world, log)
    progress = session.begin(resume)
    on_start()
    meter = Meter(list(groups), world.device, progress.skipped, progress.in_row)
    log.phase(FIRST_STEP[compile_blocks(model, config, world.device)])
    backward = worker(model, task, config, world.device)

    with session.memory_errors(), collect_rarely(), Interrupts() as interrupts, closing(_prefetched(session, mine)) as stream:
        while not session.ended:
            update, data = progress.update + 1, next(stream)
            if layers.enter(update):
                backward = worker(model, task, config, world.device)  # what was recorded trains other layers
                log.note(f"step {update}: {layers.describe()}")
            task.on_update_start(update)
            for index, batch in data.batches:
                torch.manual_seed(seed_for(config.seed, *data.begin, index))
                meter.add(backward(batch, update))
            sums, rate = sum_gradients(groups, meter.take(), world), schedule(update)
            norms, bad = optimizer_step(
                groups, trained.optimizers, sums, rate, config.clip, keep=isinstance(backward, CudaGraphSteps)
            )
            _follow(trained, refreshed, update, config.seed)
            meter.end_update(sums, norms[0], bad)
            progress.update, progress.position = update, data.after
            _report(session, meter, rate)
            with meter.paused():
                _validate_and_save(session, meter, interrupts)
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


def worker(model: nn.Module, task: Task, config: TrainSection, device: torch.device) -> Work:
    """The forward and backward pass of a micro-batch: captured as CUDA graphs if batches come in few sizes, else eager."""
    precision = autocast(device, config.precision)

    def work(batch: Batch, update: int) -> list[Loss]:
        return forward_backward(task, model, batch.to(device, non_blocking=True), update, precision)

    few = config.packed is True or (config.rounded is True and isinstance(model, Network) and model.replays)
    return CudaGraphSteps(work, device) if device.type == "cuda" and few and task.capturable else work


def forward_backward(task: Task, model: nn.Module, batch: Batch, update: int, autocast: torch.autocast) -> list[Loss]:
    """Forward and backward of one micro-batch. Adds to the gradients of the parameters and returns the detached losses.

    Losses are computed under autocast, their gradients outside of it.
    """
    detached: list[Loss] = []
    losses = task.losses(model, batch, update)
    while True:
        with autocast:
            loss = next(losses, None)
        if loss is None:
            return detached
        loss.total.backward()
        metrics = {name: value.detach() for name, value in loss.metrics.items()}
        detached.append(replace(loss, total=loss.total.detach(), metrics=metrics))


def optimizer_step(
    groups: Mapping[str, Sequence[nn.Parameter]],
    optimizers: Mapping[str, Optimizer],
    sums: Tensor,
    rate: float,
    largest: float,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """One step of every optimiser with gradients clipped to the norm `largest` (0: not clipped).

    There is no step if a sum or norm is not finite. Afterwards gradients are None or, if `keep`, zero. Returns the norm of each
    group before clipping, and 1.0 if the step was skipped.
    """
    each = [get_total_norm([parameter.grad for parameter in group if parameter.grad is not None]) for group in groups.values()]
    if largest:
        for group, norm in zip(groups.values(), each, strict=True):
            clip_grads_with_norm_(group, largest, norm)
    norms = torch.stack(each)
    bad = 1 - (sums.isfinite().all() & norms.isfinite().all()).float()
    for optimizer in optimizers.values():
        take_step(optimizer, rate, bad)
        optimizer.zero_grad(set_to_none=not keep)
    return norms, bad


def _follow(trained: TrainingState, refreshed: Sequence[RefreshesBuffers], update: int, seed: int) -> None:
    """Updates everything that follows the weights: their moving average, and the buffers of `refreshed` modules."""
    if trained.ema is not None:
        trained.ema.update(update)
    generator = torch.Generator().manual_seed(seed_for(seed, update))
    for module in refreshed:
        module.refresh(generator)


def _report(session: Session, meter: Meter, rate: float) -> None:
    """Counts the step and its time, writes a log line if one is due, and stops if too many consecutive steps were skipped."""
    config, progress = session.config, session.progress
    session.check_time()
    session.log.step(progress.update)
    if session.ended or _due(min(config.log_every, config.max_bad_steps), progress.update):
        session.check(*meter.health())
    if session.ended or _due(config.log_every, progress.update):
        values = meter.read(session.world, config.steps - progress.update)
        session.log.train(progress.update, lr=rate, skipped=progress.skipped, seconds=session.seconds, **values)


def _validate_and_save(session: Session, meter: Meter, interrupts: Interrupts) -> None:
    """Validates and saves if it is time to. After a signal, raises Interrupted once a checkpoint is saved."""
    config, update = session.config, session.progress.update
    better = (session.ended or _due(config.validate_every, update)) and session.validate()
    stop = session.world.any(interrupts.requested)
    if session.ended or stop or (better and config.keep_best) or _due(config.save_every, update):
        session.check(*meter.health())
        session.save()
    if stop and not session.ended:
        hint = f"continue with `weft train --resume {session.run}`"
        raise Interrupted(f"stopped at step {update} of {config.steps}; {hint}")


def _due(every: int, update: int) -> bool:
    return every > 0 and update % every == 0
