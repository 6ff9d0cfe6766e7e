"""One update of the weights: backward passes of micro-batches, gradient clipping, the optimisers, and the moving average.

Losses and metrics add up on the device, so that no step waits for it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from weft.config.sections import TrainSection
from weft.data.batch import Batch
from weft.layers.kernels import widest_float
from weft.models.base import Network
from weft.runs.device_and_precision import autocast
from weft.tasks.base import Loss, Task, optimizer_groups
from weft.training.activation_checkpointing import checkpoint_layers
from weft.training.checkpoint import TrainingState
from weft.training.compile_and_cuda_graphs import CudaGraphSteps, Work
from weft.training.distributed import World, clip_gradients, gradient_norm, sum_gradients
from weft.training.ema import Ema
from weft.training.gradual_unfreezing import LayerGroups
from weft.training.optimizer import RunningBuffers, take_step
from weft.training.sharding import PlainCopy, ShardedLosses, shards


class Meter:
    """Sums of losses, counts and metrics: of the current update, and of all updates since the last log line.

    A skipped step is counted but adds nothing to the sums.
    """

    def __init__(self, groups: Sequence[str], device: torch.device, skipped: int = 0, in_row: int = 0) -> None:
        self._index = {name: index for index, name in enumerate(groups)}
        self._update = torch.zeros(2, len(groups), dtype=widest_float(device), device=device)
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

    def forget_update(self) -> None:
        """Drops what the current update has added."""
        self._update, self._update_metrics = torch.zeros_like(self._update), {}

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

    def read(self, world: World, steps_left: float, seconds_left: float | None = None) -> dict[str, float]:
        """The values of a log line, over all processes and all steps since the last line. Waits for the device.

        seconds_left: the time that is left, if it is not that of `steps_left` steps.
        """
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
        values["seconds_left"] = steps_left * seconds / max(self._steps, 1) if seconds_left is None else seconds_left
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
        detached.append(loss.detached())


QUEUED = 2
"""Updates that a GPU may still have to do when the next one begins: enough to keep it busy, and few enough to be timed."""


class QueuedUpdates:
    """Updates that the host has issued and the device may not have done. Only a GPU does them later."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: deque[torch.cuda.Event] = deque()

    def wait(self) -> None:
        """Waits until no more than `QUEUED` updates are left, so that the time between two calls is that of an update."""
        mark = mark_queue(self._device)
        if mark is None:
            return
        self._marks.append(mark)
        if len(self._marks) > QUEUED:
            self._marks.popleft().synchronize()


def mark_queue(device: torch.device) -> torch.cuda.Event | None:
    """A mark behind everything that is queued on a GPU; None on devices that have done it already."""
    if device.type != "cuda":
        return None
    mark = torch.cuda.Event(blocking=True)
    mark.record(torch.cuda.current_stream(device))
    return mark


class UpdateStep:
    """The updates of a model on the device of `world`. `start` comes first; then `backward` for each micro-batch, and `finish`.

    state: everything that an update changes · report: receives messages about captures that fail
    """

    work: Work
    meter: Meter
    report: Callable[[str], None] | None = None

    def __init__(self, model: nn.Module, task: Task, config: TrainSection, world: World) -> None:
        self.model, self.task, self.config, self.world = model, task, config, world
        sharded = shards(config, world)
        plain = PlainCopy(model) if sharded else None
        if config.recompute:
            checkpoint_layers(model)
        self.sharded = ShardedLosses(task, model, config, world) if sharded else None
        self.layers, self.autocast = LayerGroups(model, config), autocast(world.device, config.precision)
        self.groups, specs = optimizer_groups(task, model)
        ema = Ema(model, config.ema) if config.ema else None
        self.state = TrainingState(model, self.layers.optimizers(self.groups, specs), ema, plain)
        self._buffers = RunningBuffers(model)
        self.queued = QueuedUpdates(world.device)

    def start(self, skipped: int = 0, in_row: int = 0) -> None:
        """Starts to measure. Backward passes are captured if batches come in few sizes.

        skipped: updates that a resumed run has skipped · in_row: how many of them were its last ones
        """
        self.meter = Meter(list(self.groups), self.world.device, skipped, in_row)
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        device, few = self.world.device, self.config.packed is True
        few = few or (self.config.rounded is True and isinstance(self.model, Network) and self.model.cuda_graph_safe)
        captured = device.type == "cuda" and few and self.task.info.capturable
        captured = captured and not (self.config.recompute or self.sharded)
        self.work = CudaGraphSteps(self._eager, device, self.report) if captured else self._eager

    def enter(self, update: int) -> bool:
        """Begins an update: freezes and unfreezes layers. Returns whether other layers are trained than before."""
        self._buffers.keep()
        changed = self.layers.enter(update)
        if changed:
            self._forget_graphs()  # they train other layers
        return changed

    def backward(self, batch: Batch, update: int, *, captured: bool = True) -> None:
        """Adds the gradients and losses of a micro-batch; without CUDA graphs unless `captured`."""
        self.meter.add((self.work if captured else self._eager)(batch, update))

    def begin_again(self) -> None:
        """Drops the gradients, losses and buffers of the current update, and all captured work, which holds memory."""
        self.meter.forget_update()
        self._buffers.restore(torch.ones((), device=self.world.device))
        for optimizer in self.state.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        self._forget_graphs()

    def _eager(self, batch: Batch, update: int) -> list[Loss]:
        batch = batch.to(self.world.device, non_blocking=True)
        if self.sharded is not None:
            return self.sharded(batch, update, self.autocast)
        return forward_backward(self.task, self.model, batch, update, self.autocast)

    def finish(self, update: int, rate: float, scheduled: float | None = None) -> Tensor:
        """One step of every optimiser, with gradients clipped to the norm train.clip (0: not clipped), and of the average.

        scheduled: the position in the schedule, if it is not the number of the update.
        Weights and buffers stay if a sum or norm is not finite. Returns the losses and counts [2, groups] of all processes.
        """
        sums = self.meter.take()
        gradients = sum_gradients(self.groups, sums, self.world)
        norms = [gradient_norm(group, sharded=self.sharded is not None) for group in gradients]
        if self.config.clip:
            for group, norm in zip(gradients, norms, strict=True):
                clip_gradients(group, self.config.clip, norm)
        bad = 1 - (sums.isfinite().all() & torch.stack(norms).isfinite().all()).float()
        for optimizer in self.state.optimizers.values():
            take_step(optimizer, rate, bad)
            # Graphs need gradients that keep their addresses.
            optimizer.zero_grad(set_to_none=not isinstance(self.work, CudaGraphSteps))
        self._buffers.restore(bad)
        if self.state.ema is not None:
            self.state.ema.update(update, update if scheduled is None else scheduled)
        self.meter.end_update(sums, norms[0], bad)
        return sums
