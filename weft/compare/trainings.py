"""One training as a user would type it: begun, gone on with, or found to be complete."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.compare.processes import Failure, Processes
from weft.config import Config, load_config

Record = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """A recipe with changes, on data; where that is empty, on the recipe's own."""

    recipe: str
    data: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()

    def config(self) -> Config:
        config = load_config(self.recipe, self.sets)
        config.data.train = list(self.data) or config.data.train
        config.data.valid = list(self.valid) or config.data.valid
        return config

    def words(self, folder: Path) -> list[str]:
        """The arguments of `weft` that begin it."""
        given = [("--data", self.data), ("--valid", self.valid), ("--set", self.sets)]
        options = [word for flag, values in given for value in values for word in (flag, value)]
        return ["train", self.recipe, "--out", str(folder), *options]


def train(training: Training, folder: Path, processes: Processes, log: str) -> None:
    """Trains into `folder`. What is complete there is left as it is, and what was interrupted goes on."""
    begun = (folder / "config.yaml").exists()
    wanted = training.config()
    if begun and _settled(load_config(folder / "config.yaml"), wanted) != wanted:
        raise Failure(f"{folder} holds a run with other settings; remove it, or choose another --out")
    if not (begun and complete(folder)):
        processes(log, ["train", "--resume", str(folder)] if begun else training.words(folder))


def complete(folder: Path) -> bool:
    """Whether a run has ended by itself."""
    found = records(folder)
    return bool(found) and found[-1]["event"] == "summary"


def records(folder: Path) -> list[Record]:
    """The whole lines of a run's log."""
    log = folder / "log.jsonl"
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def _settled(saved: Config, wanted: Config) -> Config:
    """What a run has saved, but for what it was left to settle by itself."""
    if wanted.train.packed == "auto":
        saved.train.packed = "auto"
    if wanted.train.rounded == "auto":
        saved.train.rounded = "auto"
    return saved
