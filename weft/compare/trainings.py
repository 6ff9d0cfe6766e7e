"""One training as a user would start it from the command line, and short trainings that measure its speed."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.compare.processes import Failure, Processes
from weft.config.sections import Config, load_config
from weft.runs.folder import CONFIG, LOG
from weft.runs.opening import run_config
from weft.training.run import train_run

Record = dict[str, Any]

SHARE, SHORTEST, LONGEST = 0.05, 2.0, 20.0
"""Fraction of a time budget that is spent on planning, and its minimum and maximum in seconds."""

LOG_EVERY = 10
ENDLESS = 1 << 40


@dataclass(frozen=True)
class Training:
    """A recipe with changes and data; empty data means the data of the recipe."""

    recipe: str
    data: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()

    def config(self) -> Config:
        given = {"data.train": list(self.data), "data.valid": list(self.valid)}
        config = load_config(self.recipe, self.sets).replaced({key: files for key, files in given.items() if files})
        return config.absolute()

    def words(self, folder: Path) -> list[str]:
        """The arguments of `weft` that start it."""
        given = [("--data", self.data), ("--valid", self.valid), ("--set", self.sets)]
        options = [word for flag, values in given for value in values for word in (flag, value)]
        return ["train", self.recipe, "--out", str(folder), *options]


def train(training: Training, folder: Path, processes: Processes, log: str, module: str = "weft") -> None:
    """Trains in `folder`. Resumes an interrupted run, and does nothing if the run is complete.

    module: the Python module with the command line of weft
    """
    started = (folder / CONFIG).exists()
    if started:
        wanted = training.config()
        resolved = {f"train.{key}": "auto" for key in ("packed", "rounded") if getattr(wanted.train, key) == "auto"}
        if run_config(folder).replaced(resolved) != wanted:
            raise Failure(f"{folder} holds a run with other settings; remove it, or choose another --out")
    if not (started and complete(folder)):
        processes(log, ["train", "--resume", str(folder)] if started else training.words(folder), module)


def complete(folder: Path) -> bool:
    """Whether the training of a run has finished."""
    lines = records(folder)
    return bool(lines) and lines[-1]["event"] == "summary"


def records(folder: Path) -> list[Record]:
    """The complete lines of a run's log."""
    log = folder / LOG
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


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


def pace(lines: list[Record]) -> Speed:
    """The speed over the second half of a log, or over a single line."""
    last, middle = lines[-1], lines[(len(lines) - 1) // 2]
    if middle is last:
        return Speed(0.0, last["step"] / max(last["seconds"], 1e-9))
    rate = (last["step"] - middle["step"]) / max(last["seconds"] - middle["seconds"], 1e-9)
    return Speed(max(0.0, last["seconds"] - last["step"] / rate), rate)
