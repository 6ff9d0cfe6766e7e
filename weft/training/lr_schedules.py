"""Learning rate schedules: pure functions of the update number, so that resuming needs no other state.

Each function here gets the `ScheduleContext` of the run and returns a schedule. Its keyword-only parameters are the options of
`train.schedule`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from weft.config.registry import build
from weft.config.sections import TrainSection

Schedule = Callable[[float], float]
"""The learning rate of an update, by its position in the schedule: its number, counted from 1, unless the time is limited."""


@dataclass(frozen=True)
class ScheduleContext:
    """Facts about the run that a schedule may depend on: the total number of updates and the model width."""

    steps: int
    dim: int


def build_schedule(config: TrainSection, dim: int) -> Schedule:
    """The schedule train.schedule, for a model of width `dim`."""
    schedule: Schedule = build("weft.training:SCHEDULES", config.schedule, ScheduleContext(config.steps, dim))
    return schedule


def noam(plan: ScheduleContext, *, scale: NonNegativeFloat = 1.0, warmup: NonNegativeInt = 4000) -> Schedule:
    """scale · dim^-½ · min(update^-½, update · warmup^-1½): Vaswani et al. 2017, section 5.3.

    scale: factor on the learning rate
    warmup: number of warm-up updates
    """
    return lambda update: scale * plan.dim**-0.5 * min(update**-0.5, update * max(warmup, 1) ** -1.5)


def inverse_sqrt(
    plan: ScheduleContext, *, rate: NonNegativeFloat = 5e-4, warmup: NonNegativeInt = 4000, start: NonNegativeFloat = 0.0
) -> Schedule:
    """Linear from `start` to `rate` over `warmup` updates, then rate · √(warmup / update): Noam's form with a free peak.

    rate: peak learning rate
    warmup: number of warm-up updates
    start: learning rate before the first update
    """

    def schedule(update: float) -> float:
        if update < warmup:
            return start + (rate - start) * update / warmup
        return rate * math.sqrt(max(warmup, 1) / update)

    return schedule


def cosine(
    plan: ScheduleContext, *, rate: NonNegativeFloat = 5e-4, warmup: NonNegativeInt = 1000, floor: NonNegativeFloat = 0.0
) -> Schedule:
    """Linear to `rate` over `warmup` updates, then half a cosine down to `floor`: Loshchilov & Hutter 2017, without restarts.

    rate: peak learning rate
    warmup: number of warm-up updates
    floor: final learning rate
    """

    def schedule(update: float) -> float:
        if update < warmup:
            return rate * update / warmup
        done = min((update - warmup) / max(plan.steps - warmup, 1), 1.0)
        return floor + (rate - floor) * (1 + math.cos(math.pi * done)) / 2

    return schedule


def constant(plan: ScheduleContext, *, rate: NonNegativeFloat = 1e-4, warmup: NonNegativeInt = 0) -> Schedule:
    """Linear to `rate` over `warmup` updates, then `rate`.

    rate: learning rate
    warmup: number of warm-up updates
    """
    return lambda update: rate * min(update / warmup, 1.0) if warmup else rate


def slanted_triangular(
    plan: ScheduleContext,
    *,
    rate: NonNegativeFloat = 0.01,
    cut_frac: Annotated[float, Field(ge=0, lt=1)] = 0.1,
    ratio: Annotated[float, Field(ge=1)] = 32.0,
) -> Schedule:
    """A short rise and a long fall between rate / ratio and rate: Howard & Ruder 2018, section 3.2.

    With T updates in total and cut = ⌊T · cut_frac⌋, p = t / cut for t < cut, and 1 − (t − cut) / (T − cut) afterwards; the
    rate is rate · (1 + p · (ratio − 1)) / ratio. The paper divides by cut · (1 / cut_frac − 1), which is the same if
    T · cut_frac is an integer; otherwise it becomes negative in short runs.

    rate: peak learning rate
    cut_frac: fraction of updates with rising learning rate
    ratio: ratio of the highest to the lowest learning rate
    """
    cut = math.floor(plan.steps * cut_frac)

    def schedule(update: float) -> float:
        t = min(update, plan.steps)
        p = t / cut if t < cut else 1 - (t - cut) / max(plan.steps - cut, 1)
        return rate * (1 + p * (ratio - 1)) / ratio

    return schedule
