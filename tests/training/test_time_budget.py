"""Time budgets with a clock of their own: the time is used, not exceeded, and resumed exactly. No test here waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.small_task import SmallTask, train
from weft.config.sections import TrainSection
from weft.errors import Interrupted
from weft.training import checkpoint
from weft.training.log import open_log
from weft.training.time_budget import SchedulePosition

BUDGET = 100.0
COSINE = {"kind": "cosine", "rate": 0.01, "warmup": 5}


class Clock:
    """A clock that only the task moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        fake = SimpleNamespace(perf_counter=lambda: self.now, monotonic=lambda: self.now)
        monkeypatch.setattr("weft.training.session.time", fake)


class TimedTask(SmallTask):
    """A task whose updates and validations take the time that they are told."""

    def __init__(self, clock: Clock, update: Callable[[float, int], float], validation: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.clock, self.update, self.validation = clock, update, validation
        self.validations: list[float] = []

    def losses(self, model: Any, batch: Any, update: int) -> Any:
        self.clock.now += self.update(self.clock.now, update)
        yield from super().losses(model, batch, update)

    def evaluate(self, model: Any) -> dict[str, float]:
        self.validations.append(self.clock.now)
        self.clock.now += self.validation
        return super().evaluate(model)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


MACHINES: dict[str, Callable[[float, int], float]] = {
    "as planned": lambda now, update: 1.0,
    "fast": lambda now, update: 0.3,
    "busy": lambda now, update: 6.0,
    "slower": lambda now, update: 0.4 if now < 50 else 3.0,
    "faster": lambda now, update: 3.0 if now < 50 else 0.4,
    "unsteady": lambda now, update: (0.2, 2.0)[update // 7 % 2],
    "compiling": lambda now, update: 30.0 if update == 1 else 0.5,
}


@pytest.mark.parametrize("validation", [0.1, 4.0])
@pytest.mark.parametrize("machine", MACHINES)
def test_a_time_is_used_and_not_exceeded(machine: str, validation: float, clock: Clock, tmp_path: Path) -> None:
    log = open_log(tmp_path, 0, tensorboard=False, terminal=False)
    task = TimedTask(clock, MACHINES[machine], validation)
    options = {"steps": 90, "seconds": BUDGET, "budget": "time", "validate_every": 9, "save_every": 9, "log_every": 1}
    result, _ = train(tmp_path, task=task, log=log, schedule=COSINE, **options)
    assert 0.85 * BUDGET <= clock.now <= 1.05 * BUDGET and result.stopped == "time"
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    rates = [line["lr"] for line in lines if line["event"] == "train"]
    assert rates[-1] < 0.05 * max(rates), "the schedule ends with the time"
    assert len(task.validations) >= 4 and validation * len(task.validations) <= 0.25 * BUDGET + validation


@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_steps_are_the_most_unless_the_time_decides(seconds: float, clock: Clock, tmp_path: Path) -> None:
    task = TimedTask(clock, lambda now, update: seconds, 0.0)
    result, _ = train(tmp_path, task=task, steps=40, seconds=BUDGET, validate_every=0, save_every=50, schedule=COSINE)
    assert (result.update, result.stopped) == ((40, "steps") if seconds < 1 else (20, "time"))
    assert clock.now <= BUDGET


def test_without_a_binding_time_every_update_is_a_whole_step() -> None:
    position = SchedulePosition(TrainSection(steps=1000, seconds=1e6))
    for update in range(1, 1001):
        position.value = position.after(update, 0.1 * update)
        position.add_update(0.1)
        assert position.value == update


def test_a_run_with_a_time_that_was_stopped_ends_with_the_same_bits(clock: Clock, tmp_path: Path) -> None:
    options = {"steps": 30, "seconds": BUDGET, "budget": "time", "validate_every": 0, "save_every": 1000, "ema": 0.9}
    machine = MACHINES["slower"]
    train(tmp_path / "whole", task=TimedTask(clock, machine, 0.0), **options)
    clock.now = 0.0
    with pytest.raises(Interrupted):
        train(tmp_path / "stopped", task=TimedTask(clock, machine, 0.0, interrupt_at=40), **options)
    result, _ = train(tmp_path / "stopped", task=TimedTask(clock, machine, 0.0), resume=True, **options)
    files = [run / "model.safetensors" for run in (tmp_path / "whole", tmp_path / "stopped")]
    assert result.update > 45 and files[0].read_bytes() == files[1].read_bytes()


def test_a_finished_run_gets_more_time_and_a_new_tail(clock: Clock, tmp_path: Path) -> None:
    options = {"steps": 30, "budget": "time", "validate_every": 10, "save_every": 10, "patience": 30, "schedule": COSINE}
    first, _ = train(tmp_path, task=TimedTask(clock, lambda now, update: 1.0, 0.0), seconds=50, **options)
    log = open_log(tmp_path, 0, tensorboard=False, terminal=False)
    more, _ = train(
        tmp_path, task=TimedTask(clock, lambda now, update: 1.0, 0.0), seconds=100, resume=True, log=log, log_every=1, **options
    )
    assert (first.update, more.update) == (50, 100)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    rates = [line["lr"] for line in lines if line["event"] == "train" and line["step"] > 50]
    assert rates[0] == pytest.approx(0.01 * 0.7, rel=0.2) and rates == sorted(rates, reverse=True) and rates[-1] < 1e-4
    assert "the schedule is stretched over 1:40 in all: 50% of it are done" in (tmp_path / "train.log").read_text()


def test_a_checkpoint_keeps_what_was_planned(clock: Clock, tmp_path: Path) -> None:
    task = TimedTask(clock, lambda now, update: 1.0, 2.0)
    train(tmp_path, task=task, steps=30, seconds=50, budget="time", validate_every=10, save_every=10)
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    schedule = checkpoint.check(newest)["progress"]["schedule"]
    assert schedule["position"] == 30 and schedule["seconds"] == 50 and set(schedule["updates"]) == {1.0}
    assert schedule["pauses"]["validation"][-1] == 2.0
