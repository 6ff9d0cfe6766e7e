"""What benchmarks/campaigns/long_training.py concludes from its measurements."""

from __future__ import annotations

import importlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

CAMPAIGNS = Path(__file__).parents[2] / "benchmarks" / "campaigns"


@pytest.fixture
def long_training(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(CAMPAIGNS))
    return importlib.import_module("long_training")


def write(out: Path, *, growth: float, slowing: float, different: bool = False) -> None:
    """Two processes of half an hour each, with `growth` MiB per hour, and `slowing` percent of speed lost per hour."""
    chance, lines, step = random.Random(4), [], 0
    for life in (1, 2):
        for minute in range(30):
            hours = (minute + 30 * (life - 1)) / 60
            step += round(600 * (1 - slowing * hours / 100) + chance.uniform(-6, 6))
            rss = 400 + growth * minute / 60 + chance.uniform(-1, 1)
            lines.append({"life": life, "hours": hours, "step": step, "seconds": 60.0 * (minute + 1), "rss": rss})
    (out / "measured.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for name, steps in (("run", range(50, 1000, 50)), ("control", range(50, 500, 50))):
        events = [{"event": "train", "step": at, "loss": 1 / at} for at in steps]
        events[3]["loss"] += 1e-12 * different * (name == "run")
        (out / name).mkdir(exist_ok=True)
        (out / name / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in events) + '{"event": "tr')


def test_growing_memory_and_slowing_training_are_seen(long_training: Any, tmp_path: Path) -> None:
    write(tmp_path, growth=0.0, slowing=0.0)
    flat = long_training.memory_slope(long_training.measured(tmp_path), 120.0)
    assert abs(flat.per_hour) < 3 * flat.error
    text = long_training.report(tmp_path)
    assert "1 resumptions, 950 steps" in text and "9 losses compared, 0 differ" in text
    write(tmp_path, growth=50.0, slowing=10.0, different=True)
    lines = long_training.measured(tmp_path)
    growing = long_training.memory_slope(lines, 120.0)
    assert growing.per_hour == pytest.approx(50, abs=3 * growing.error) and growing.per_hour > 10 * growing.error
    speeds = [speed for _, speed in long_training.speeds(lines, 15.0)]
    assert speeds[0] == pytest.approx(10, rel=0.05) and speeds[-1] == pytest.approx(9, rel=0.05)
    assert long_training.compare(tmp_path) == (9, 1)


def test_a_process_is_measured_from_outside(long_training: Any) -> None:
    held = long_training.held({os.getpid(): "this"})
    assert held.processes == 1 and 0 < held.pss <= held.rss and held.descriptors > 2 and held.seconds > 0
