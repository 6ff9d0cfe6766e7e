"""Learning rate schedules: pure functions of the update number, so that resuming needs no other state.

Updates count from 1. Every schedule gets the `Plan` of the run; its keyword-only parameters are the options of
`train.schedule`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """What a schedule knows about the run: the total number of updates and the model width."""

    steps: int
    dim: int


class Schedule(ABC):
    @abstractmethod
    def __call__(self, update: int) -> float:
        """The learning rate of `update`, which counts from 1."""


class Noam(Schedule):
    """scale · dim^-½ · min(update^-½, update · warmup^-1½): Vaswani et al. 2017, section 5.3.

    scale: factor on the learning rate
    warmup: number of warm-up updates
    """

    def __init__(self, plan: Plan, *, scale: float = 1.0, warmup: int = 4000) -> None:
        self.dim, self.scale, self.warmup = plan.dim, scale, max(warmup, 1)

    def __call__(self, update: int) -> float:
        return self.scale * self.dim**-0.5 * min(update**-0.5, update * self.warmup**-1.5)


class InverseSquareRoot(Schedule):
    """Linear from `start` to `rate` over `warmup` updates, then rate · √(warmup / update): Noam's form with a free peak.

    rate: peak learning rate
    warmup: number of warm-up updates
    start: learning rate before the first update
    """

    def __init__(self, plan: Plan, *, rate: float = 5e-4, warmup: int = 4000, start: float = 0.0) -> None:
        self.rate, self.warmup, self.start = rate, max(warmup, 1), start

    def __call__(self, update: int) -> float:
        if update < self.warmup:
            return self.start + (self.rate - self.start) * update / self.warmup
        return self.rate * math.sqrt(self.warmup / update)


class Cosine(Schedule):
    """Linear to `rate` over `warmup` updates, then half a cosine down to `floor`: Loshchilov & Hutter 2017, without restarts.

    floor + (rate − floor) · (1 + cos(π · (update − warmup) / (steps − warmup))) / 2

    rate: peak learning rate
    warmup: number of warm-up updates
    floor: final learning rate
    """

    def __init__(self, plan: Plan, *, rate: float = 5e-4, warmup: int = 1000, floor: float = 0.0) -> None:
        self.steps, self.rate, self.warmup, self.floor = plan.steps, rate, warmup, floor

    def __call__(self, update: int) -> float:
        if update < self.warmup:
            return self.rate * update / self.warmup
        done = min((update - self.warmup) / max(self.steps - self.warmup, 1), 1.0)
        return self.floor + (self.rate - self.floor) * (1 + math.cos(math.pi * done)) / 2


class Constant(Schedule):
    """Linear to `rate` over `warmup` updates, then `rate`.

    rate: learning rate
    warmup: number of warm-up updates
    """

    def __init__(self, plan: Plan, *, rate: float = 1e-4, warmup: int = 0) -> None:
        self.rate, self.warmup = rate, warmup

    def __call__(self, update: int) -> float:
        return self.rate * min(update / self.warmup, 1.0) if self.warmup else self.rate


class SlantedTriangular(Schedule):
    """A short rise and a long fall between rate / ratio and rate: Howard & Ruder 2018, section 3.2.

    With T updates in total and cut = ⌊T · cut_frac⌋, p = t / cut for t < cut, and 1 − (t − cut) / (T − cut) afterwards; the
    rate is rate · (1 + p · (ratio − 1)) / ratio. The paper divides by cut · (1 / cut_frac − 1), which is the same if
    T · cut_frac is an integer; otherwise it becomes negative in short runs.

    rate: peak learning rate
    cut_frac: fraction of updates with rising learning rate
    ratio: ratio of the highest to the lowest learning rate
    """

    def __init__(self, plan: Plan, *, rate: float = 0.01, cut_frac: float = 0.1, ratio: float = 32.0) -> None:
        self.steps, self.rate, self.ratio = plan.steps, rate, ratio
        self.cut = math.floor(plan.steps * cut_frac)

    def __call__(self, update: int) -> float:
        t = min(update, self.steps)
        p = t / self.cut if t < self.cut else 1 - (t - self.cut) / max(self.steps - self.cut, 1)
        return self.rate * (1 + p * (self.ratio - 1)) / self.ratio
