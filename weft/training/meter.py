"""Accumulates losses and metrics on the device, so that no step waits for the device."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from weft.tasks.base import Loss
from weft.training.distributed import World


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
