"""The entries of a comparison: recipes and files, each with its own changes.

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

from weft.config import yaml_document as document
from weft.config.registry import Among, nested, options_of, suggest
from weft.config.sections import Config, load_config
from weft.errors import ConfigError
from weft.runs.open_run import build_task

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


def slot_entries(bases: Sequence[Entry], slot: str, kinds: str, tell: Callable[[str], None]) -> list[Entry]:
    """Each base with each of the comma-separated `kinds` in a slot such as model.encoder_self.

    `all` means every kind that works in the slot with its default options; `tell` reports the others, and why they do not.
    """
    entries = []
    for base in bases:
        chosen = _buildable(base, slot, tell) if kinds.strip() == ALL else split(kinds)
        for kind in chosen:
            name = _short(document.value(kind, f"--kinds {kind}"))
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
    changes = [f"{key.rpartition('.')[2]}={_short(document.value(value, change))}" for key, _, value, change in settings]
    return " ".join(changes if changes and one_recipe else [Path(entry.recipe).stem, *changes])


def _short(value: Any) -> str:
    """A value in short, such as `local window=8` for a part with options."""
    if isinstance(value, dict):
        rest = [f"{key}={_short(item)}" for key, item in value.items() if key != "kind"]
        return " ".join([str(value.get("kind", "")), *rest]).strip()
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return document.scalar(value).strip("'\"")


def _buildable(base: Entry, slot: str, tell: Callable[[str], None]) -> Iterator[str]:
    """The kinds with which the model of the base can be built."""
    config = load_config(base.recipe, base.sets)
    for kind in _table(config, slot).entries:
        try:
            changed = load_config(base.recipe, [*base.sets, f"{slot}={kind}"])
            with torch.device("meta"):
                task = build_task(changed, Path())
                task.build(changed.model, task.outline())
        except ConfigError as error:
            tell(f"leaving out {kind}: {error}")
            continue
        yield kind


def _table(config: Config, slot: str) -> Among:
    """The table of kinds for a slot of the section model."""
    fields = options_of("weft.models:MODELS", config.model["kind"]).model_fields
    slots = {f"model.{name}": part for name, field in fields.items() if isinstance(part := nested(field), Among)}
    if slot not in slots:
        raise ConfigError(f"--slot {slot}: {config.model['kind']} has no such slot; {suggest(slot, slots)}")
    return slots[slot]
