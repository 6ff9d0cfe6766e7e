"""One training as a user would start it from the command line: started, resumed, or already complete."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.compare.processes import Failure, Processes
from weft.config.sections import Config, load_config
from weft.runs.folder import CONFIG, LOG
from weft.runs.opening import run_config

Record = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """A recipe with changes and data; empty data means the data of the recipe."""

    recipe: str
    data: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()

    def config(self) -> Config:
        given = {"data.train": list(self.data), "data.valid": list(self.valid)}
        return load_config(self.recipe, self.sets).replaced({key: files for key, files in given.items() if files})

    def words(self, folder: Path) -> list[str]:
        """The arguments of `weft` that start it."""
        given = [("--data", self.data), ("--valid", self.valid), ("--set", self.sets)]
        options = [word for flag, values in given for value in values for word in (flag, value)]
        return ["train", self.recipe, "--out", str(folder), *options]


def train(training: Training, folder: Path, processes: Processes, log: str) -> None:
    """Trains in `folder`. Resumes an interrupted run, and does nothing if the run is complete."""
    started = (folder / CONFIG).exists()
    if started and not _matches(run_config(folder), training.config()):
        raise Failure(f"{folder} holds a run with other settings; remove it, or choose another --out")
    if not (started and complete(folder)):
        processes(log, ["train", "--resume", str(folder)] if started else training.words(folder))


def complete(folder: Path) -> bool:
    """Whether the training of a run has finished."""
    lines = records(folder)
    return bool(lines) and lines[-1]["event"] == "summary"


def records(folder: Path) -> list[Record]:
    """The complete lines of a run's log."""
    log = folder / LOG
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def _matches(saved: Config, wanted: Config) -> bool:
    """Whether a run has the wanted settings, apart from those it resolved from `auto`."""
    resolved = [key for key in ("packed", "rounded") if getattr(wanted.train, key) == "auto"]
    return saved.replaced({f"train.{key}": "auto" for key in resolved}) == wanted
