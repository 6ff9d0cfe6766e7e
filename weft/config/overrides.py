"""Settings given on the command line, `--set section.key=value`, applied to a configuration file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.config import document
from weft.config.shorthands import fold, fold_saved, is_shorthand
from weft.errors import ConfigError


@dataclass(frozen=True)
class Override:
    """One `--set`: the path of keys, the new value, and the text as the user wrote it."""

    path: document.Path
    value: Any
    text: str


def parse_override(text: str) -> Override:
    """Parses "a.b=c". Naming the kind of a part, "a.b.kind=c", is the same as "a.b=c"."""
    key, equals, value = text.partition("=")
    path = tuple(step.strip() for step in key.split("."))
    if not equals or not all(path):
        raise ConfigError(f"--set {text}: expected section.key=value, such as train.steps=500")
    if len(path) > 1 and path[-1] == "kind":
        path = path[:-1]
    return Override(path, document.value(value, f"--set {text}"), text)


def apply_overrides(
    data: dict[str, Any], overrides: Sequence[Override], base: document.Document
) -> dict[document.Path, document.Path]:
    """Writes all overrides into `data`, in place. `base` forgets the lines of the values they replace.

    Shorthands of `decode` are expanded; the result maps the paths of their options to the paths that were written.
    """
    data["decode"], written = fold_saved(data.get("decode", {}))
    short = {each.path[1]: each.value for each in overrides if each.path[:1] == ("decode",) and is_shorthand(*each.path[1:])}
    # Shorter paths first, so that `model.encoder_self=local` never undoes `model.encoder_self.window=8`.
    for override in sorted(overrides, key=lambda override: len(override.path)):
        shorthand = override.path[:1] == ("decode",) and override.path[1:2] and override.path[1] in short
        if not shorthand and put(data, override.path, override.value, f"--set {override.text}"):
            base.forget(override.path)
    chosen = any(override.path == ("decode", "search") for override in overrides)
    data["decode"], more = fold(data["decode"], short, chosen=chosen)
    return {("decode", *path): ("decode", key) for path, key in (written | more).items()}


def put(data: dict[str, Any], path: document.Path, value: Any, where: str) -> bool:
    """Writes a value into data whose parts are all mappings. Returns whether it changed anything. Errors call it `where`."""
    *parents, last = path
    for depth, key in enumerate(parents, 1):
        below = data.setdefault(key, {})
        if isinstance(below, str):
            below = data[key] = {"kind": below}
        if not isinstance(below, dict):
            raise ConfigError(f"{where}: {'.'.join(path[:depth])} is {document.scalar(below)}, which has no options")
        data = below
    old = data.get(last)
    if isinstance(old, dict) and isinstance(value, str) and old.get("kind") == value:
        return False  # the part already has this kind and keeps its options
    data[last] = value
    return True


def locate(path: document.Path, problem: str, base: document.Document, overrides: Sequence[Override]) -> str:
    """A message that says where the value at `path` was written: in an override, or on a line of the file."""
    written = base.nearest(path)
    for override in overrides:
        shared = min(len(override.path), len(path))
        if override.path[:shared] == path[:shared] and shared > len(written):
            where = f"--set {override.text}"
            return f"{where}: {problem}" if shared == len(path) else f"{where}: {'.'.join(path)}: {problem}"
    where = f"{base.name}, line {base.lines[written]}" if base.lines else base.name
    return f"{where}: {'.'.join(path) or 'configuration'}: {problem}"
