"""Time budgets: the course of a run that has a certain time, on a machine whose speed changes.

The learning rate, the validations and the checkpoints of a run follow its position in the schedule, from 0 to train.steps.
Without train.seconds, every update advances it by 1. With a time, every update plans the rest anew: as many updates are left as
fit into the time that is left, at the speed of the last ones, and each takes an equal share of the rest of the schedule. So the
schedule always ends with the time. The position is saved with a checkpoint, and a resumed run continues from it.
"""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from weft.config.sections import TrainSection

RECENT = 32
"""Updates over which the speed is measured."""

RECENT_PAUSES = 3
"""Validations, or checkpoints, that say how long the next one takes."""

PAUSES = 0.2
"""The largest share of the time that is kept for validations and checkpoints, and that validations may take."""

ENDING, MARGIN, MOST_ENDING = 1.5, 0.01, 0.06
"""Seconds that a process needs to exit, the share of a time that is kept free, and the largest share for the exit on a machine
where the process gets little of its cores."""

SLOWER, LATEST = 2.0, 4
"""The most by which a pause is expected to take longer than before because the LATEST updates do."""

LOADING = 4.0
"""The assumed age of a process, in seconds, where it is unknown."""

_began: list[float] = []
"""When the command began that this process was started for, if it was."""


def count_from_process_start() -> None:
    """Lets times begin with this process, as those of a command do. On a busy machine, imports alone may take a minute."""
    _began[:] = [time.monotonic() - process_age()]


Pause = Literal["validation", "checkpoint"]


class TimeBudget:
    """The time that a command may take, from the start of its process, or a call in Python, from now on.

    validation: the seconds that a validation is expected to take, as far as is known
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.validation = seconds, 0.0
        self._began = _began[0] if _began else time.monotonic()
        self._worked = 0.0 if _began else time.process_time()

    def left(self) -> float:
        """Seconds that training may take from now on, at least 1, with a margin for the end of the process.

        The end takes longer where other processes have the cores, as the time of the clock next to that of this process tells.
        """
        spent, worked = time.monotonic() - self._began, time.process_time() - self._worked
        ending = min(ENDING * max(1.0, spent / max(worked, 0.5)), max(ENDING, MOST_ENDING * self.seconds))
        return max(1.0, self.seconds * (1 - MARGIN) - ending - spent)


def process_age() -> float:
    """Seconds since this process was started, where the system says it."""
    try:
        started = int(Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()[19])
        return float(Path("/proc/uptime").read_text("utf-8").split()[0]) - started / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return LOADING


class OutOfTime(Exception):
    """The time is over. Nobody sees this error."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises OutOfTime in the block after a time; 0: never. Only the main thread of a Unix process can be stopped so."""
    if not seconds or sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class SchedulePosition:
    """The position of a run in its schedule. With several processes, only that of the first one counts.

    validation: the seconds that the first validation is expected to take
    """

    def __init__(self, config: TrainSection, value: float = 0.0, validation: float = 0.0) -> None:
        self.config, self.value, self._expected = config, value, validation
        self._paces: dict[str, float] = {}
        self._updates: deque[float] = deque(maxlen=RECENT)
        self._warm = False
        self._pauses: dict[Pause, deque[float]] = {kind: deque(maxlen=RECENT_PAUSES) for kind in ("validation", "checkpoint")}

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the schedule is planned from, for a checkpoint."""
        pauses = {kind: list(seconds) for kind, seconds in self._pauses.items()}
        planned = {"position": self.value, "seconds": self.config.seconds}
        return {**planned, "updates": list(self._updates), "warm": self._warm, "pauses": pauses, "paces": dict(self._paces)}

    def resume(self, state: Mapping[str, Any], updates: int, elapsed: float) -> bool:
        """Continues from `state`, after a number of updates and seconds. Returns whether the schedule is stretched anew.

        It is if train.seconds has changed: then the position is that of a run that had all of this time from the beginning.
        """
        config = self.config
        self.value = float(state.get("position", updates)) if config.seconds else float(updates)
        if not (config.seconds and updates):
            return False
        self._updates.extend(state.get("updates", ()))
        self._warm = bool(state.get("warm"))
        for kind, seconds in state.get("pauses", {}).items():
            self._pauses[kind].extend(seconds)
        self._paces.update(state.get("paces", {}))
        planned = config.budget == "time" or self.value > updates
        if not planned or state.get("seconds") == config.seconds:
            return False
        least = updates if config.budget == "steps" else 0
        self.value = max(least, config.steps * min(1.0, elapsed / config.seconds))
        return True

    @property
    def ended(self) -> bool:
        return self.value >= self.config.steps

    @property
    def reserve(self) -> float:
        """Seconds that the last validation and the last checkpoint will take, as far as is known."""
        return (2 if self.config.average_last else 1) * self._longest("validation") + self._longest("checkpoint")

    def validation_fits(self, elapsed: float) -> bool:
        """Whether a validation that begins now is expected to end with the time."""
        return not self.limits_validation or elapsed + self._longest("validation") <= self.config.seconds * (1 + MARGIN)

    def validation_limit(self, elapsed: float) -> float:
        """The most seconds that a validation may take that begins now; 0: there is no limit."""
        return max(1.0, self.config.seconds * (1 + 2 * MARGIN) - elapsed) if self.limits_validation else 0.0

    @property
    def limits_validation(self) -> bool:
        """Whether the time ends validations too. A run that validates only at the end, and one that publishes the last weights,
        need their score, however long it takes."""
        return bool(self.config.seconds and self.config.validate_every and self.config.keep_best)

    def _longest(self, kind: Pause) -> float:
        """The seconds of the next pause: of the longest one so far, or more if updates take longer now than they did then."""
        seconds = self._pauses[kind]
        if not seconds:
            return self._expected if kind == "validation" else 0.0
        before, now = self._paces.get(kind, 0.0), self._pace()
        return max(seconds) * min(SLOWER, max(1.0, now / before)) if before else max(seconds)

    def _pace(self) -> float:
        """The seconds of an update now; 0 if it is unknown."""
        latest = list(self._updates)[-LATEST:]
        return fmean(latest) if latest else 0.0

    def after(self, update: int, elapsed: float) -> float:
        """The position after update number `update`, which is nearly done `elapsed` seconds after the beginning of training."""
        steps = self.config.steps
        if not self.config.seconds:
            return float(update)
        left = self._fitting(elapsed)
        if self.config.budget == "steps":
            left = min(left, steps - update + 1)
        return self.value + (steps - self.value) / left if left > 1 else float(steps)

    def add_update(self, seconds: float) -> None:
        """Counts the time of an update, without pauses. That of the first one, which warms up, is replaced by the second."""
        if self._updates and not self._warm:
            self._updates.clear()
            self._warm = True
        self._updates.append(seconds)

    def add_pause(self, kind: Pause, seconds: float) -> None:
        """Counts the time of a validation or of a checkpoint."""
        self._pauses[kind].append(seconds)
        self._paces[kind] = self._pace()

    def validation_pays(self, since_last: float) -> bool:
        """Whether a validation may take place `since_last` seconds after the last one: it must not take most of the time."""
        known = self._pauses["validation"]
        return not self.config.seconds or not known or fmean(known) <= PAUSES * since_last

    def _fitting(self, elapsed: float) -> float:
        """The number of updates that are left, with the current one; those of the schedule while the speed is unknown."""
        steps, every = self.config.steps, self.config.validate_every or self.config.save_every
        if not self._updates:
            return max(1.0, steps - self.value)
        left = max(0.0, self.config.seconds - elapsed - self.reserve)
        pauses = (steps - self.value) // every * sum(fmean(seconds) for seconds in self._pauses.values() if seconds)
        return 1 + (left - min(pauses, PAUSES * left)) // max(fmean(self._updates), 1e-9)
