"""A comparison as it was asked for, and the trainings it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.compare.budget import Budget
from weft.compare.entries import Entry
from weft.compare.trainings import Training
from weft.config import Config
from weft.errors import ConfigError

SETTINGS = ("train.validate_every=0", "train.keep_last=1", "train.tensorboard=false")
"""Of every training, unless a user sets them: nothing is chosen on the way, so that only the budget's end counts."""

SAME_BATCHES = ("train.packed=false", "train.rounded=false")
"""Besides, with a budget in steps: a packed step has more in it than a padded one, a rounded one less, and not every model
can do with such batches."""

GIVEN = ("train.steps", "train.seconds")
"""What the budget says, and nobody else."""


@dataclass(frozen=True)
class Comparison:
    """What to compare, on what, and how.

    repeat: trainings of each entry, from one seed after the other · at_once: how many are trained side by side · lengths: at
    which growth is measured · sentences: how many of the validation data are decoded for the speed, where there is no test.
    """

    entries: tuple[Entry, ...]
    out: Path
    budget: Budget
    data: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    repeat: int = 1
    at_once: int = 1
    lengths: tuple[int, ...] = ()
    sentences: int = 0

    def document(self) -> dict[str, Any]:
        """Plain data for reports."""
        lists = {name: list(getattr(self, name)) for name in ("data", "valid", "test", "sets", "lengths")}
        return {
            "budget": self.budget.text,
            "repeat": self.repeat,
            "at_once": self.at_once,
            "sentences": self.sentences,
            **lists,
        }


@dataclass(frozen=True)
class Run:
    """One training of an entry. number: 0 for the first, of which more is measured than of the others."""

    entry: Entry
    seed: int
    number: int
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    def __str__(self) -> str:
        return f"{self.entry.label}, seed {self.seed}"


def training(comparison: Comparison, entry: Entry, *last: str) -> Training:
    """An entry under the comparison's settings, with those of `last` over all others."""
    settings = (*SETTINGS, *SAME_BATCHES) if comparison.budget.steps else SETTINGS
    sets = (*settings, *comparison.sets, *entry.sets, *last)
    return Training(entry.recipe, comparison.data, comparison.valid, sets)


def runs_of(comparison: Comparison, entry: Entry) -> list[Run]:
    first = training(comparison, entry).config().train.seed
    folder = comparison.out / "runs"
    return [
        Run(entry, first + number, number, folder / f"{entry.name}.{first + number}") for number in range(comparison.repeat)
    ]


def check(comparison: Comparison) -> list[str]:
    """Raises ConfigError for what cannot be compared; gives sentences about what may not be meant so."""
    if not comparison.entries:
        raise ConfigError("name at least one recipe or file to compare; `weft list recipes` shows recipes")
    if comparison.at_once > 1 and comparison.budget.seconds:
        raise ConfigError("--at-once: trainings that share a device slow each other down; give a --budget in steps")
    for change in [*comparison.sets, *(change for entry in comparison.entries for change in entry.sets)]:
        if change.partition("=")[0].strip() in GIVEN:
            raise ConfigError(f"{change}: how long is trained is what --budget says; leave this setting away")
    configs = [training(comparison, entry).config() for entry in comparison.entries]
    kinds = sorted({config.task["kind"] for config in configs})
    if len(kinds) > 1:
        raise ConfigError(f"entries have different tasks ({', '.join(kinds)}), whose scores cannot be compared")
    for entry, config in zip(comparison.entries, configs, strict=True):
        if not config.data.train:
            raise ConfigError(f"{entry.label}: there is no training data; give --data")
        if not (config.data.valid or comparison.test):
            raise ConfigError(f"{entry.label}: there is nothing to compare by; give --valid, --test or both")
    return _doubts(comparison, configs)


def _doubts(comparison: Comparison, configs: Sequence[Config]) -> list[str]:
    steps = comparison.budget.steps
    long = [
        f"{entry.label}: its learning rate rises for {warmup:,} of {steps:,} steps; --set train.schedule.warmup=… shortens that"
        for entry, config in zip(comparison.entries, configs, strict=True)
        if steps and (warmup := int(config.train.schedule.get("warmup", 0))) > steps / 2
    ]
    data = {(tuple(config.data.train), tuple(config.data.valid)) for config in configs}
    return long + (["entries are not trained on the same data: their recipes name others"] if len(data) > 1 else [])
