"""What is compared: recipes and files, each with changes of its own.

    transformer-small                                      a recipe
    mine.yaml                                              a file
    transformer-small,model.encoder_self=local             a recipe with a change; commas part several
    transformer-small,label=near,model.encoder_self=local  and what it is called in tables and pictures

Nothing of this means anything to a shell, and where one expands braces, `transformer-small,model.encoder_self={full,local}`
is two entries. A value with commas of its own needs quotes: 'transformer-small,model.encoder_self={kind: local, window: 8}'.
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

from weft import document
from weft.config import Config, load_config
from weft.errors import ConfigError
from weft.models.base import Sizes
from weft.models.composing import build_model
from weft.registry import Among, nested, options_of, suggest

ALL = "all"
LABEL = "label="
OPENING, CLOSING, QUOTES = "[{(", "]})", "'\""


@dataclass(frozen=True)
class Entry:
    """A recipe or file, and what is changed in it. label: what people call it; empty until `labelled` finds one."""

    recipe: str
    sets: tuple[str, ...] = ()
    label: str = ""

    @property
    def spec(self) -> str:
        return ",".join([self.recipe, *self.sets])

    @property
    def name(self) -> str:
        """A name for folders, which depends on what the entry is and not on how it is called."""
        text = ",".join([Path(self.recipe).stem, *self.sets])
        plain = re.sub(r"[^\w.=-]+", "-", text).strip("-.")[:60]
        digest = hashlib.blake2b(self.spec.encode(), digest_size=3).hexdigest()
        return plain if plain == self.spec else f"{plain}-{digest}"


def parse_entry(text: str) -> Entry:
    """The entry that an argument of the command line describes."""
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
    """Each base with each of the `kinds` (joined by commas) in its slot, such as model.encoder_self.

    `all` stands for every kind that can stand there with no options; `tell` hears which cannot, and why.
    """
    found = []
    for base in bases:
        chosen = _possible(base, slot, tell) if kinds.strip() == ALL else split(kinds)
        for kind in chosen:
            called = _short(document.value(kind, f"--kinds {kind}"))
            label = " ".join(filter(None, [base.label or (base.spec if len(bases) > 1 else ""), called]))
            found.append(Entry(base.recipe, (*base.sets, f"{slot}={kind}"), label))
    return found


def labelled(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with a label each: what tells them apart, as short as it can be."""
    one_recipe = len({entry.recipe for entry in entries}) == 1
    found = [entry if entry.label else replace(entry, label=_label(entry, one_recipe)) for entry in entries]
    labels = [entry.label for entry in found]
    whole = [replace(entry, label=entry.spec) if labels.count(entry.label) > 1 else entry for entry in found]
    for label, times in Counter(entry.label for entry in whole).items():
        if times > 1:
            raise ConfigError(f"{label}: is there {times} times; name each entry once (--repeat trains it several times)")
    return whole


def split(text: str) -> list[str]:
    """The parts of `text` between commas that stand in no brackets and no quotes."""
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
    stem = Path(entry.recipe).stem
    changes = [_short_change(change) for change in entry.sets]
    return " ".join(changes if changes and one_recipe else [stem, *changes])


def _short_change(change: str) -> str:
    key, _, value = change.partition("=")
    return f"{key.rpartition('.')[2]}={_short(document.value(value, change))}"


def _short(value: Any) -> str:
    """A kind with its options in a few letters: `local window=8`."""
    if isinstance(value, dict):
        rest = [f"{key}={_short(item)}" for key, item in value.items() if key != "kind"]
        return " ".join([str(value.get("kind", "")), *rest]).strip()
    return document.scalar(value).strip("'\"")


def _possible(base: Entry, slot: str, tell: Callable[[str], None]) -> Iterator[str]:
    """The kinds with which the base's model can be built."""
    config = load_config(base.recipe, base.sets)
    for kind in _table(config, slot).entries:
        try:
            changed = load_config(base.recipe, [*base.sets, f"{slot}={kind}"])
            with torch.device("meta"):
                build_model(changed.model, Sizes(8, 8, True))
        except ConfigError as error:
            tell(f"{kind} is left out: {error}")
            continue
        yield kind


def _table(config: Config, slot: str) -> Among:
    """What may stand in a slot of the section model."""
    section, _, option = slot.partition(".")
    fields = options_of("weft.models:MODELS", config.model["kind"]).model_fields
    slots = {f"model.{name}": nested(field) for name, field in fields.items()}
    table = slots.get(slot) if section == "model" and option else None
    if not isinstance(table, Among):
        known = [name for name, what in slots.items() if isinstance(what, Among)]
        raise ConfigError(f"--slot {slot}: there is no such slot in {config.model['kind']}; {suggest(slot, known)}")
    return table
