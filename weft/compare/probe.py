"""Measures training speed by a short training: to plan the number of steps for a time budget, or to report it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.compare.trainings import records
from weft.config.sections import Config
from weft.training.run import train_run

SHARE, SHORTEST, LONGEST = 0.05, 2.0, 20.0
"""Fraction of a time budget that is spent on planning, and its minimum and maximum in seconds."""

LOG_EVERY = 10
ENDLESS = 1 << 40


@dataclass(frozen=True)
class Speed:
    """Seconds until training reaches its full speed, and steps per second from then on.

    Texts or tokens per second would depend on which batches a short training happens to see.
    """

    startup: float
    steps_a_second: float

    def planned(self, seconds: float) -> int:
        """The number of steps that fit into a time, at least 1."""
        return max(1, int((seconds - self.startup) * self.steps_a_second))


def probe(config: Config, seconds: float) -> Speed:
    """Trains for `seconds` in a temporary folder, without validation."""
    # The learning rate schedule for ENDLESS steps does not matter for the speed.
    limits = {"train.steps": ENDLESS, "train.seconds": seconds, "train.log_every": LOG_EVERY, "train.save_every": ENDLESS}
    short = config.replaced({**limits, "train.tensorboard": False, "data.valid": []})
    with tempfile.TemporaryDirectory() as folder:
        train_run(short, Path(folder) / "run")
        return pace([record for record in records(Path(folder) / "run") if record["event"] == "train"])


def probe_seconds(budget: float) -> float:
    return min(max(SHARE * budget, SHORTEST), LONGEST)


def pace(lines: list[dict[str, Any]]) -> Speed:
    """The speed over the second half of a log, or over a single line."""
    last, middle = lines[-1], lines[(len(lines) - 1) // 2]
    if middle is last:
        return Speed(0.0, last["step"] / max(last["seconds"], 1e-9))
    rate = (last["step"] - middle["step"]) / max(last["seconds"] - middle["seconds"], 1e-9)
    return Speed(max(0.0, last["seconds"] - last["step"] / rate), rate)
