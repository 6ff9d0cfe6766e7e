"""How time and memory of a training step grow with length: measured at several lengths, and the exponent fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from weft.bench.timing import timed
from weft.models.base import Network, Sizes
from weft.tasks.base import Task
from weft.training.loop import forward_backward

TIMES, LONG_ENOUGH = 5, 3.0
"""How often a step is timed, within so many seconds; the fastest counts, since nothing makes a step faster than it is."""

SLOW = 20.0
"""Seconds after which longer texts are not tried: a step would take minutes."""


@dataclass(frozen=True)
class Growth:
    """Of a forward and backward pass over one text: its lengths, and seconds and bytes at each.

    time, memory: the exponents p of length^p, by least squares of logarithms; None with fewer than two lengths.
    """

    lengths: list[int]
    seconds: list[float]
    bytes: list[int]
    time: float | None
    memory: float | None

    def document(self) -> dict[str, Any]:
        return asdict(self)


def measure_growth(model: Network, task: Task, sizes: Sizes, lengths: Sequence[int], autocast: torch.autocast) -> Growth:
    """Measures at those of `lengths` that the model has positions and the device memory for."""
    limit = min((most for most in (model.max_source, model.max_target) if most is not None), default=None)
    seconds: list[float] = []
    sizes_in_memory: list[int] = []
    tried = [length for length in sorted(lengths) if limit is None or length <= limit]
    model.train()
    for length in tried:
        try:
            best, needed = _measure(model, task, sizes, length, autocast)
        except torch.OutOfMemoryError:
            break
        finally:
            model.zero_grad(set_to_none=True)
        seconds.append(best)
        sizes_in_memory.append(needed)
        if best > SLOW:
            break
    done = tried[: len(seconds)]
    return Growth(done, seconds, sizes_in_memory, exponent(done, seconds), exponent(done, sizes_in_memory))


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float | None:
    """The p of values ≈ c · lengthᵖ."""
    points = [(math.log(length), math.log(value)) for length, value in zip(lengths, values, strict=True) if value > 0]
    if len(points) < 2:
        return None
    middle, height = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    above = sum((x - middle) * (y - height) for x, y in points)
    return above / sum((x - middle) ** 2 for x, _ in points)


def _measure(model: Network, task: Task, sizes: Sizes, length: int, autocast: torch.autocast) -> tuple[float, int]:
    """(seconds, bytes) of a step at one length. The first step, in which kernels are chosen, is not timed."""
    device = model.device
    batch = task.made_up(length, sizes).to(device)

    def step() -> None:
        forward_backward(task, model, batch, 1, autocast)

    needed = _memory(step, model)
    return min(timed(step, device, times=TIMES, within=LONG_ENOUGH)), needed


def _memory(step: Callable[[], None], model: Network) -> int:
    """On a GPU the most that a step allocates; on a CPU, where nobody counts, what forward keeps for backward."""
    if model.device.type == "cuda":
        step()  # gradients are there from now on, and do not count
        torch.cuda.synchronize(model.device)
        before = torch.cuda.memory_allocated(model.device)
        torch.cuda.reset_peak_memory_stats(model.device)
        step()
        torch.cuda.synchronize(model.device)
        return torch.cuda.max_memory_allocated(model.device) - before
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes(), tensor  # held, so that no other gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(size for size, _ in kept.values())
