"""How fast a training is, by a short one: to plan the steps that a time allows, and to measure a speed undisturbed."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.compare.trainings import records
from weft.config import Config
from weft.training.run import train_run

SHARE, SHORTEST, LONGEST = 0.05, 2.0, 20.0
"""Of a budget's time that goes into finding out how far it reaches, and the least and most of it in seconds."""

LOG_EVERY = 10
ENDLESS = 1 << 40


@dataclass(frozen=True)
class Speed:
    """startup: seconds before training runs at its pace · from then on, steps a second.

    Counts a second (of texts, of target tokens) would depend on how far a moment reaches: batches of short texts have more.
    """

    startup: float
    steps_a_second: float

    def planned(self, seconds: float) -> int:
        """The steps for which a time is long enough, at least 1."""
        return max(1, int((seconds - self.startup) * self.steps_a_second))


def probe(config: Config, seconds: float) -> Speed:
    """Trains for so long in a folder that is thrown away; nothing is validated."""
    short = config.model_copy(deep=True)
    # Validated as they are set; the schedule of so many steps does not matter to the pace.
    short.train.steps, short.train.seconds, short.train.log_every = ENDLESS, seconds, LOG_EVERY
    short.train.save_every, short.train.tensorboard, short.data.valid = ENDLESS, False, []
    with tempfile.TemporaryDirectory() as folder:
        train_run(short, Path(folder) / "run")
        return pace([each for each in records(Path(folder) / "run") if each["event"] == "train"])


def probe_seconds(budget: float) -> float:
    return min(max(SHARE * budget, SHORTEST), LONGEST)


def pace(lines: list[dict[str, Any]]) -> Speed:
    """The speed over the later half of a log; of a single line, over all of it."""
    last, middle = lines[-1], lines[(len(lines) - 1) // 2]
    if middle is last:
        return Speed(0.0, last["step"] / max(last["seconds"], 1e-9))
    rate = (last["step"] - middle["step"]) / max(last["seconds"] - middle["seconds"], 1e-9)
    return Speed(max(0.0, last["seconds"] - last["step"] / rate), rate)
