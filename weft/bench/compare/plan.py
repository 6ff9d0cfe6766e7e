"""The plan of a comparison: its settings, the training budget of each entry, and the trainings it consists of.

Its entries are recipes and files, each with its own changes:

    transformer-small                                      a recipe
    mine.yaml                                              a file
    transformer-small,model.encoder_self=local             a recipe with a change; separate several by commas
    transformer-small,label=near,model.encoder_self=local  the same with a label for tables and charts

None of these characters is special in a shell, except that many shells expand braces, so that
`transformer-small,model.encoder_self={full,local}` becomes two entries. Quote a value that itself contains commas:
'transformer-small,model.encoder_self={kind: local, window: 8}', or, for layers in turn,
'transformer-small,model.encoder_self=[local, lsh]'.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from weft.bench.compare.training_jobs import Training
from weft.config import yaml_document
from weft.config.registry import Among, nested, options_of, suggest
from weft.config.sections import Config, load_config
from weft.errors import ConfigError
from weft.tasks.base import build_task
from weft.training.auto.plan_for_time import parse_duration
from weft.training.prepare_run import lower_to_steps

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
    engine     "ray": trainings run on a cluster of Ray, `at_once` of them, or as many as it has GPUs or else cores
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
    engine: str | None = None

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
    if comparison.at_once > 1 and comparison.budget.seconds and comparison.engine is None:
        raise ConfigError(
            "--at-once: trainings that share a device slow each other down; give a --budget in steps, or --engine ray"
        )
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
    long = [
        note for entry, config in zip(comparison.entries, configs, strict=True) for note in _warmup(comparison, entry, config)
    ]
    data = {(repr(config.data.train), repr(config.data.valid)) for config in configs}
    return long + (["the entries are trained on different data: their recipes name different files"] if len(data) > 1 else [])


def _warmup(comparison: Comparison, entry: Entry, config: Config) -> list[str]:
    """Notes about a warm-up that is too long for the steps: training shortens one that would not end."""
    steps, notes = comparison.budget.steps, list[str]()
    if not steps:
        return []
    lowered = lower_to_steps(config.replaced({"train.steps": steps, "train.average_last": 0}), notes.append)
    warmup = int(lowered.train.schedule.get("warmup", 0))
    if not notes and warmup > steps / 2:
        notes.append(f"{warmup:,} of {steps:,} steps are warm-up; --set train.schedule.warmup=… shortens it")
    return [f"{entry.label}: {note}" for note in notes]


ALL = "all"
LABEL = "label="
OPENING, CLOSING, QUOTES = "[{(", "]})", "'\""


@dataclass(frozen=True)
class Entry:
    """A recipe or file, and the changes to it. label: its name in reports; empty until `labelled` chooses one."""

    recipe: str
    sets: tuple[str, ...] = ()
    label: str = ""

    @property
    def spec(self) -> str:
        return ",".join([self.recipe, *self.sets])

    @property
    def name(self) -> str:
        """A name for folders. It depends on the recipe and its changes, not on the label."""
        text = ",".join([Path(self.recipe).stem, *self.sets])
        plain = re.sub(r"[^\w.=-]+", "-", text).strip("-.")[:60]
        digest = hashlib.blake2b(self.spec.encode(), digest_size=3).hexdigest()
        return plain if plain == self.spec else f"{plain}-{digest}"


def parse_entry(text: str) -> Entry:
    """Parses an argument of the command line."""
    if Path(text).is_file():
        return Entry(text)
    recipe, *changes = split(text)
    labels = [change.removeprefix(LABEL) for change in changes if change.startswith(LABEL)]
    sets = tuple(change for change in changes if not change.startswith(LABEL))
    for change in sets:
        key, equals, _ = change.partition("=")
        if not equals or not key:
            raise ConfigError(f"{text}: {change!r} is not a setting; write RECIPE,section.key=value,… without spaces")
    if not recipe or len(labels) > 1 or "" in labels:
        raise ConfigError(f"{text}: write RECIPE, or RECIPE,section.key=value,…, with at most one label=NAME among them")
    return Entry(recipe, sets, labels[0] if labels else "")


def parse_entries(
    recipes: Sequence[str], slot: str | None, kinds: str | None, report: Callable[[str], None]
) -> tuple[Entry, ...]:
    """Parses recipes with their changes, each with every kind in the slot if there is one, and labels them."""
    if (slot is None) != (kinds is None):
        raise ConfigError("--slot and --kinds belong together: --slot model.encoder_self --kinds full,local,linear")
    entries = [parse_entry(text) for text in recipes]
    return tuple(labelled(slot_entries(entries, slot, kinds, report) if slot and kinds else entries))


def slot_entries(bases: Sequence[Entry], slot: str, kinds: str, report: Callable[[str], None]) -> list[Entry]:
    """Each base with each of the comma-separated `kinds` in a slot such as model.encoder_self.

    `all` means every kind that works in the slot with its default options; the others are reported, and why they do not.
    """
    entries = []
    for base in bases:
        chosen = _buildable(base, slot, report) if kinds.strip() == ALL else split(kinds)
        for kind in chosen:
            name = _short(yaml_document.value(kind, f"--kinds {kind}"))
            label = " ".join(filter(None, [base.label or (base.spec if len(bases) > 1 else ""), name]))
            entries.append(Entry(base.recipe, (*base.sets, f"{slot}={kind}"), label))
    return entries


def labelled(entries: Sequence[Entry]) -> list[Entry]:
    """Gives each entry without a label the shortest label that distinguishes it."""
    one_recipe = len({entry.recipe for entry in entries}) == 1
    short = [entry if entry.label else replace(entry, label=_label(entry, one_recipe)) for entry in entries]
    labels = [entry.label for entry in short]
    distinct = [replace(entry, label=entry.spec) if labels.count(entry.label) > 1 else entry for entry in short]
    for label, times in Counter(entry.label for entry in distinct).items():
        if times > 1:
            raise ConfigError(f"{label}: occurs {times} times; name each entry once (--repeat trains it several times)")
    return distinct


def split(text: str) -> list[str]:
    """Splits `text` at the commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        elif letter == "," and depth == 0:
            parts.append("")
            continue
        depth += (letter in OPENING) - (letter in CLOSING) if not quote else 0
        parts[-1] += letter
    return [part.strip() for part in parts]


def _label(entry: Entry, one_recipe: bool) -> str:
    settings = [(*change.partition("="), change) for change in entry.sets]
    changes = [f"{key.rpartition('.')[2]}={_short(yaml_document.value(value, change))}" for key, _, value, change in settings]
    return " ".join(changes if changes and one_recipe else [Path(entry.recipe).stem, *changes])


def _short(value: Any) -> str:
    """A value in short, such as `local window=8` for a part with options."""
    if isinstance(value, dict):
        rest = [f"{key}={_short(item)}" for key, item in value.items() if key != "kind"]
        return " ".join([str(value.get("kind", "")), *rest]).strip()
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return yaml_document.scalar(value).strip("'\"")


def _buildable(base: Entry, slot: str, report: Callable[[str], None]) -> Iterator[str]:
    """The kinds with which the model of the base can be built."""
    config = load_config(base.recipe, base.sets)
    for kind in _table(config, slot).entries:
        try:
            changed = load_config(base.recipe, [*base.sets, f"{slot}={kind}"])
            with torch.device("meta"):
                task = build_task(changed, Path())
                task.build(changed.model, task.placeholder_sizes())
        except ConfigError as error:
            report(f"leaving out {kind}: {error}")
            continue
        yield kind


def _table(config: Config, slot: str) -> Among:
    """The table of kinds for a slot of the section model."""
    fields = options_of("weft.models:MODELS", config.model["kind"]).model_fields
    slots = {f"model.{name}": part for name, field in fields.items() if isinstance(part := nested(field), Among)}
    if slot not in slots:
        raise ConfigError(f"--slot {slot}: {config.model['kind']} has no such slot; {suggest(slot, slots)}")
    return slots[slot]
