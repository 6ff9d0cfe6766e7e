"""Whole commands with --time on simulated machines: start-up, reading, measuring, planning and training with pretended times.

The real budget, `auto` and the training loop run on a clock that only the pretended work moves. A measured speed may be wrong,
and everything may become slower or faster on the way. No test here waits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.small_task import train
from tests.training.test_auto import CPU, write
from tests.training.test_time_budget import BUDGET, Clock, TimedTask
from weft.config.sections import load_config
from weft.training import checkpoint
from weft.training.auto import plan_for_time
from weft.training.auto.plan_for_time import chooser
from weft.training.auto.speed_probe import Speed, probe_seconds
from weft.training.log import Log, Sink
from weft.training.log_text import Record
from weft.training.time_budget import TimeBudget, count_from_process_start
from weft.training.update_step import Meter


@dataclass(frozen=True)
class Machine:
    """How many seconds everything takes.

    update    an update, by the time at which it begins and its number
    measured  what the measurement before training finds: updates per second, and the seconds of a validation
    ahead     whether updates are only queued, as on a GPU, and waited for when a value is read
    """

    update: Callable[[float, int], float]
    imports: float = 3.0
    reading: float = 2.0
    preparing: float = 2.0
    validation: Callable[[float], float] = lambda now: 1.0
    saving: float = 0.05
    ending: float = 0.5
    measured: tuple[float, float] | None = None
    ahead: bool = False


def always(seconds: float) -> Callable[..., float]:
    return lambda *given: seconds


def changing(at: float, before: float, after: float) -> Callable[..., float]:
    return lambda now, *given: before if now < at else after


class Records(Sink):
    def __init__(self) -> None:
        self.lines: list[Record] = []

    def record(self, record: Record) -> None:
        self.lines.append(record)


class Task(TimedTask):
    """A task whose validations take as long as the machine says then."""

    def __init__(self, clock: Clock, machine: Machine) -> None:
        super().__init__(clock, machine.update)
        self.machine = machine

    def evaluate(self, model: Any) -> dict[str, float]:
        self.validation = self.machine.validation(self.clock.now)
        return super().evaluate(model)


def pretend(machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets everything around training take as long as on the machine."""
    for module in ("time_budget", "update_step"):
        monkeypatch.setattr(f"weft.training.{module}.time", clock.fake)
    monkeypatch.setattr("weft.training.update_step.mark_queue", clock.mark)
    monkeypatch.setattr("weft.training.validate_and_save.time_limit", nullcontext)  # it has the clock of the system
    monkeypatch.setattr("weft.training.time_budget._began", [])
    monkeypatch.setattr("weft.training.time_budget.process_age", lambda: clock.now)

    def slow(place: Any, name: str, seconds: float) -> None:
        """Waits for the queue and passes the time before calling the real function."""
        real = getattr(place, name)

        def slowly(*given: Any, **named: Any) -> Any:
            clock.wait()
            clock.now += seconds
            return real(*given, **named)

        monkeypatch.setattr(place, name, slowly)

    def probe(config: Any, seconds: float, run: Path) -> Speed:
        update, validation = machine.update(clock.now, 1), machine.validation(clock.now)
        clock.now += probe_seconds(BUDGET) + min(seconds, validation)
        return Speed(0.5, *(machine.measured or (1 / update, validation)))

    slow(Meter, "health", 0.0)
    slow(Meter, "read", 0.0)
    slow(checkpoint, "save", machine.saving)
    slow(plan_for_time, "choose_data", machine.reading)
    monkeypatch.setattr(plan_for_time, "probe", probe)
    monkeypatch.setattr(plan_for_time, "fastest_threads", lambda *given: torch.get_num_threads())


def command(machine: Machine, clock: Clock, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """`weft train auto --time` with pretended times. Returns the lines of its log; clock.now is when it has ended."""
    pretend(machine, clock, monkeypatch)
    clock.now = machine.imports
    count_from_process_start()
    budget, given, records = TimeBudget(BUDGET), [f"data.cache={folder / 'cache'}"], Records()
    config = load_config("auto", given).replaced({"data.train": [write(folder, 100)]})
    section = chooser(True, given, budget, lambda line: None)(config, folder, CPU).train
    clock.now += machine.preparing
    taken = ("steps", "budget", "validate_every", "save_every", "patience", "keep_best", "schedule")
    options = {name: getattr(section, name) for name in taken}
    place: dict[str, Any] = {"task": Task(clock, machine), "log": Log([records]), "validation": budget.validation}
    train(folder, **place, **options, seconds=budget.left(), log_every=10)
    clock.wait()
    clock.now += machine.ending
    return records.lines


MACHINES: dict[str, Machine] = {
    "steady": Machine(always(1.0)),
    "unsteady": Machine(lambda now, update: (0.4, 4.0)[update // 7 % 2]),
    "ten times slower from the middle on": Machine(changing(50, 0.4, 4.0)),
    "ten times faster from the middle on": Machine(changing(50, 3.0, 0.3)),
    "ten times slower near the end": Machine(changing(85, 0.4, 4.0)),
    "held up for a moment": Machine(lambda now, update: 10.0 if 40 < now < 45 else 1.0),
    "compiling": Machine(lambda now, update: 30.0 if update == 1 else 0.5),
    "a hundred times slower than measured": Machine(always(1.0), measured=(100.0, 0.01)),
    "a hundred times faster than measured": Machine(always(0.5), measured=(0.02, 50.0)),
    "slow to begin": Machine(always(0.5), imports=25.0, reading=15.0, preparing=10.0),
    "slow validation": Machine(always(0.5), validation=always(12.0)),
    "validation becomes ten times slower": Machine(changing(50, 0.4, 4.0), validation=changing(50, 1.0, 10.0)),
    "slow checkpoints": Machine(always(0.5), saving=3.0),
    "queued": Machine(always(0.5), ahead=True),
    "queued, ten times slower from the middle on": Machine(changing(50, 0.4, 4.0), ahead=True),
    "queued, ten times slower near the end": Machine(changing(85, 0.3, 3.0), ahead=True),
    "queued, a hundred times slower than measured": Machine(always(0.8), ahead=True, measured=(100.0, 0.01)),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_time_is_used_whatever_the_machine_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MACHINES[name]
    clock = Clock(monkeypatch, ahead=machine.ahead)
    lines = command(machine, clock, tmp_path, monkeypatch)
    assert 0.85 * BUDGET <= clock.now <= 1.05 * BUDGET
    validations = [line for line in lines if line["event"] == "validation"]
    spent = sum(machine.validation(0.0) for _ in validations)
    assert len(validations) >= 2 and spent <= 0.3 * BUDGET
    steps = [(line["step"], line["lr"]) for line in lines if line["event"] == "train"]
    assert steps[-1][1] < 0.05 * max(rate for _, rate in steps), "the schedule ends with the time"
