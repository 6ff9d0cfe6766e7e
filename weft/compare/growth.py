"""Growth of the time and memory of a training step with sequence length: measurements and fitted exponents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from weft.bench.machine import timed
from weft.models.base import Network, Sizes
from weft.tasks.base import Task
from weft.training.loop import forward_backward

REPETITIONS, TIME_LIMIT = 5, 3.0
"""Number of timed steps, and the seconds they may take. The fastest counts, since disturbances only make steps slower."""

SLOW = 20.0
"""Seconds per step above which longer sequences are not measured: their steps would take minutes."""


@dataclass(frozen=True)
class Growth:
    """Seconds and bytes of a forward and backward pass over one text, at several lengths.

    time, memory: the exponents p of length^p, by least squares in log space; None with fewer than two lengths.
    """

    lengths: list[int]
    seconds: list[float]
    bytes: list[int]
    time: float | None
    memory: float | None


def measure_growth(model: Network, task: Task, sizes: Sizes, lengths: Sequence[int], autocast: torch.autocast) -> Growth:
    """Measures growth over `lengths`, up to the model's maximum length and the memory of the device."""
    seconds: list[float] = []
    sizes_in_memory: list[int] = []
    tried = [length for length in sorted(lengths) if model.longest is None or length <= model.longest]
    model.train()
    for length in tried:
        step = partial(forward_backward, task, model, task.made_up(length, sizes).to(model.device), 1, autocast)
        try:
            needed = _memory(step, model)  # first, because it includes warm-up
            best = min(timed(step, model.device, times=REPETITIONS, within=TIME_LIMIT))
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
    """The exponent p in values ≈ c · lengthᵖ."""
    points = [(math.log(length), math.log(value)) for length, value in zip(lengths, values, strict=True) if value > 0]
    return statistics.linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else None


def _memory(step: Callable[[], object], model: Network) -> int:
    """Memory of a step: on a GPU the peak allocation, on a CPU the tensors that forward saves for backward."""
    if model.device.type == "cuda":
        step()  # allocates the gradients, which are not to be counted
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
            kept[storage.data_ptr()] = storage.nbytes(), tensor  # a reference, so that the address is not reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(size for size, _ in kept.values())
