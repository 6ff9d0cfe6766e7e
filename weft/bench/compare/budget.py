"""The plan of a comparison: its settings, the training budget of each entry, and the trainings it consists of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.bench.compare.entries import Entry
from weft.bench.compare.training_jobs import Training
from weft.errors import ConfigError
from weft.training.auto.auto_recipe import parse_duration

SETTINGS = ("train.validate_every=0", "train.keep_last=1", "train.tensorboard=false")
"""Defaults for every training: only the model at the end of the budget counts, so no checkpoint is selected on the way."""

SAME_BATCHES = ("train.packed=false", "train.rounded=false")
"""Further defaults with a budget in steps: a packed step holds more tokens than a padded one and a rounded step fewer, and
not every model supports such batches."""

BUDGETED = ("train.steps", "train.seconds")
"""Settings that only the budget determines."""

FACTORS = {"": 1, "k": 1_000, "M": 1_000_000}


@dataclass(frozen=True)
class Budget:
    """A number of steps or of seconds; the other is 0. text: the budget as the user wrote it."""

    text: str
    steps: int = 0
    seconds: float = 0.0


def parse_budget(text: str) -> Budget:
    """Parses a budget such as "10m", "90s", "1h30m", "500-steps" or "20k-steps"."""
    number = r"(\d+(?:\.\d+)?)"
    if seconds := parse_duration(text):
        return Budget(text, seconds=seconds)
    if match := re.fullmatch(rf"{number}(k|M|)[- ]?steps?", text.strip()):
        steps = round(float(match[1]) * FACTORS[match[2]])
        if steps > 0:
            return Budget(text, steps=steps)
    raise ConfigError(f"--budget {text}: write a time such as 90s, 10m or 1.5h, or steps such as 500-steps or 20k-steps")


@dataclass(frozen=True)
class Comparison:
    """The settings of a comparison.

    repeat     number of trainings per entry, with consecutive seeds
    at_once    number of trainings that run in parallel
    lengths    sequence lengths at which growth is measured
    sentences  number of validation sentences decoded to measure the speed, if there is no test data
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
        numbers = {name: getattr(self, name) for name in ("repeat", "at_once", "sentences")}
        return {"budget": self.budget.text, **numbers, **lists}


@dataclass(frozen=True)
class ComparisonRun:
    """One training of an entry. number: 0 for the first one, of which more is measured."""

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
    """The training of an entry with the settings of the comparison; the settings in `last` override all others."""
    settings = (*SETTINGS, *SAME_BATCHES) if comparison.budget.steps else SETTINGS
    sets = (*settings, *comparison.sets, *entry.sets, *last)
    return Training(entry.recipe, comparison.data, comparison.valid, sets)


def runs_of(comparison: Comparison, entry: Entry) -> list[ComparisonRun]:
    first = training(comparison, entry).config().train.seed
    folder = comparison.out / "runs"
    seeds = range(first, first + comparison.repeat)
    return [ComparisonRun(entry, seed, number, folder / f"{entry.name}.{seed}") for number, seed in enumerate(seeds)]


def check(comparison: Comparison) -> list[str]:
    """Raises ConfigError if the comparison is impossible. Returns warnings about settings that may be mistakes."""
    if not comparison.entries:
        raise ConfigError("name at least one recipe or file to compare; `weft list recipes` shows recipes")
    if comparison.at_once > 1 and comparison.budget.seconds:
        raise ConfigError("--at-once: trainings that share a device slow each other down; give a --budget in steps")
    for change in [*comparison.sets, *(change for entry in comparison.entries for change in entry.sets)]:
        if change.partition("=")[0].strip() in BUDGETED:
            raise ConfigError(f"{change}: --budget sets the length of training; remove this setting")
    configs = [training(comparison, entry).config() for entry in comparison.entries]
    kinds = sorted({config.task["kind"] for config in configs})
    if len(kinds) > 1:
        raise ConfigError(f"the entries have different tasks ({', '.join(kinds)}), so their scores cannot be compared")
    for entry, config in zip(comparison.entries, configs, strict=True):
        if not config.data.train:
            raise ConfigError(f"{entry.label}: there is no training data; give --data")
        if not (config.data.valid or comparison.test):
            raise ConfigError(f"{entry.label}: there is no data to score; give --valid, --test or both")
    steps = comparison.budget.steps
    long = [
        f"{entry.label}: {warmup:,} of {steps:,} steps are warm-up; --set train.schedule.warmup=… shortens it"
        for entry, config in zip(comparison.entries, configs, strict=True)
        if steps and (warmup := int(config.train.schedule.get("warmup", 0))) > steps / 2
    ]
    data = {(repr(config.data.train), repr(config.data.valid)) for config in configs}
    return long + (["the entries are trained on different data: their recipes name different files"] if len(data) > 1 else [])
