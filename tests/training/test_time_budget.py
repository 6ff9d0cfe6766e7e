"""Time budgets with a clock of their own: the time is used, not exceeded, and resumed exactly. No test here waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers.small_task import SmallTask, train
from weft.config.sections import TrainSection
from weft.errors import Interrupted
from weft.training import checkpoint
from weft.training.log import open_log
from weft.training.time_budget import SchedulePosition, TimeBudget, count_from_process_start

BUDGET = 100.0
ISSUED = 0.002
"""Seconds in which the host queues an update."""

COSINE = {"kind": "cosine", "rate": 0.01, "warmup": 5}


class Clock:
    """A clock that only the task moves. With `ahead`, updates are queued, as on a GPU, and their time comes when one waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, ahead: bool = False) -> None:
        self.now, self.queued, self.ahead = 0.0, 0.0, ahead
        fake = SimpleNamespace(perf_counter=lambda: self.now, monotonic=lambda: self.now, process_time=lambda: self.now)
        monkeypatch.setattr("weft.training.validate_and_save.time", fake)
        self.fake = fake

    @property
    def begins(self) -> float:
        """When the next update begins."""
        return max(self.now, self.queued)

    def update(self, seconds: float) -> None:
        self.queued = self.begins + seconds
        if self.ahead:
            self.now += ISSUED
        else:
            self.wait()

    def wait(self) -> None:
        """Until everything that is queued is done."""
        self.now = self.begins

    def mark(self, device: torch.device) -> SimpleNamespace | None:
        """What `mark_queue` returns."""
        reached = self.queued

        def synchronize() -> None:
            self.now = max(self.now, reached)

        return SimpleNamespace(synchronize=synchronize) if self.ahead else None


class TimedTask(SmallTask):
    """A task whose updates and validations take the time that they are told."""

    def __init__(self, clock: Clock, update: Callable[[float, int], float], validation: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.clock, self.update, self.validation = clock, update, validation
        self.validations: list[float] = []

    def losses(self, model: Any, batch: Any, update: int) -> Any:
        self.clock.update(self.update(self.clock.begins, update))
        yield from super().losses(model, batch, update)

    def evaluate(self, model: Any) -> dict[str, float]:
        self.clock.wait()
        self.validations.append(self.clock.now)
        self.clock.now += self.validation
        return super().evaluate(model)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_validation_that_no_longer_fits_is_left_out(clock: Clock, tmp_path: Path) -> None:
    log = open_log(tmp_path, 0, tensorboard=False, terminal=False)
    task = TimedTask(clock, lambda now, update: 1.0 if update < 80 else 15.0, 6.0)
    options = {"steps": 90, "seconds": BUDGET, "budget": "time", "validate_every": 30, "save_every": 90}
    result, _ = train(tmp_path, task=task, log=log, schedule=COSINE, **options)
    assert 0.85 * BUDGET <= clock.now <= 1.05 * BUDGET and result.weights == "best" and "loss" in result.scores
    assert "no time is left to validate step 80" in (tmp_path / "train.log").read_text()


def test_a_time_that_is_over_before_the_first_validation_ends_without_a_score(clock: Clock, tmp_path: Path) -> None:
    task = TimedTask(clock, lambda now, update: 99.0, 20.0)
    log = open_log(tmp_path, 0, tensorboard=False, terminal=False)
    options = {"steps": 90, "seconds": BUDGET, "budget": "time", "validate_every": 30}
    result, _ = train(tmp_path, task=task, log=log, validation=20.0, **options)
    assert clock.now <= 1.05 * BUDGET and result.scores == {} and task.validations == []
    assert "its weights are published without a score" in (tmp_path / "train.log").read_text()


class EndlessTask(SmallTask):
    """A task whose validation never ends by itself."""

    def evaluate(self, model: Any) -> dict[str, float]:
        while True:
            super().evaluate(model)


def test_a_validation_that_takes_longer_than_the_time_is_stopped(tmp_path: Path) -> None:
    log = open_log(tmp_path, 0, tensorboard=False, terminal=False)
    options = {"steps": 3, "seconds": 0.5, "budget": "time", "validate_every": 1, "ema": 0.9}
    result, _ = train(tmp_path, task=EndlessTask(), log=log, **options)
    assert (result.stopped, result.weights, result.scores) == ("time", "ema", {})
    assert "no time is left to validate" in (tmp_path / "train.log").read_text() and (tmp_path / "model.safetensors").exists()


def test_a_run_that_validates_only_at_the_end_is_scored(clock: Clock, tmp_path: Path) -> None:
    task = TimedTask(clock, lambda now, update: 150.0, 50.0)
    result, _ = train(tmp_path, task=task, steps=9, seconds=BUDGET, budget="time", validate_every=0, validation=50.0)
    assert "loss" in result.scores and len(task.validations) == 1


def test_the_first_validation_is_expected_to_take_what_was_measured() -> None:
    position = SchedulePosition(TrainSection(steps=100, seconds=BUDGET), validation=7.0)
    assert position.reserve == 7.0 and not position.validation_fits(95.0)
    for _ in range(2):
        position.add_update(1.0)
    position.add_pause("validation", 4.0)
    assert position.reserve == 4.0 and position.validation_fits(96.0)
    for _ in range(8):
        position.add_update(1.5)
    assert position.reserve == 6.0, "updates take half as long again, and so will a validation"


@pytest.mark.parametrize(("worked", "kept"), [(20.0, 1.5), (5.0, 6.0), (1.0, 12.0)])
def test_a_process_that_gets_little_of_a_core_needs_longer_to_end(
    worked: float, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = SimpleNamespace(wall=0.0, cpu=0.0)
    fake = SimpleNamespace(monotonic=lambda: spent.wall, process_time=lambda: spent.cpu)
    monkeypatch.setattr("weft.training.time_budget.time", fake)
    budget = TimeBudget(200.0)
    spent.wall, spent.cpu = 20.0, worked
    assert budget.left() == pytest.approx(200 - 2 - 20 - kept)


def test_the_time_of_a_command_begins_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its imports took a minute, as they do on a busy machine. A call in an old process begins with the call."""
    fake = SimpleNamespace(monotonic=lambda: 5000.0, process_time=lambda: 50.0)
    monkeypatch.setattr("weft.training.time_budget.time", fake)
    monkeypatch.setattr("weft.training.time_budget.process_age", lambda: 60.0)
    monkeypatch.setattr("weft.training.time_budget._began", [])
    assert TimeBudget(200.0).left() == pytest.approx(200 - 2 - 1.5)
    count_from_process_start()
    assert TimeBudget(200.0).left() == pytest.approx(200 - 2 - 60 - 1.5 * 60 / 50)


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

    def machine(now: float, update: int) -> float:
        return 0.4 if now < 50 else 3.0

    train(tmp_path / "whole", task=TimedTask(clock, machine, 0.0), **options)
    clock.now = clock.queued = 0.0
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
