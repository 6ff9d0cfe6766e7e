"""Changes of a configuration: `--set section.key=value`, options of a call, and shorthands for options of `decode.search`.

`decode.beam=5` is a shorthand for `decode.search: {kind: beam, width: 5}`. Configurations saved before `decode.search` existed
have all shorthands with their defaults. There, those that the search does not use are ignored; in a change they are an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.config import document
from weft.config.registry import find_table, options_of
from weft.errors import ConfigError

SEARCHES = "weft.search:SEARCHES"
NAMES = {"beam": "width"}
SHORTHANDS = ("beam", "length_penalty", "stop", "sample", "temperature", "top_k", "top_p", "seed")
Written = dict[tuple[str, ...], str]
"""The path of an option below `decode` → the shorthand it was written as."""


@dataclass(frozen=True)
class Override:
    """One change: the path of keys, the new value, and what error messages call it."""

    path: document.Path
    value: Any
    where: str

    @property
    def shorthand(self) -> bool:
        return len(self.path) == 2 and self.path[0] == "decode" and self.path[1] in SHORTHANDS


def parse_override(text: str) -> Override:
    """Parses "a.b=c". Naming the kind of a part, "a.b.kind=c", is the same as "a.b=c"."""
    key, equals, value = text.partition("=")
    path = tuple(step.strip() for step in key.split("."))
    if not equals or not all(path):
        raise ConfigError(f"--set {text}: expected section.key=value, such as train.steps=500")
    if len(path) > 1 and path[-1] == "kind":
        path = path[:-1]
    return Override(path, document.value(value, f"--set {text}"), f"--set {text}")


def apply_overrides(
    data: dict[str, Any], overrides: Sequence[Override], base: document.Document | None = None
) -> dict[document.Path, document.Path]:
    """Writes all overrides into `data`, in place. `base`, if given, forgets the lines of the values they replace.

    Shorthands of `decode` are expanded; the result maps the paths of their options to the paths that were written.
    """
    data["decode"], written = fold_saved(data.get("decode", {}))
    short = {override.path[1]: override.value for override in overrides if override.shorthand}
    # Shorter paths first, so that `model.encoder_self=local` never undoes `model.encoder_self.window=8`.
    for override in sorted(overrides, key=lambda override: len(override.path)):
        if not override.shorthand and put(data, override.path, override.value, override.where) and base is not None:
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
            return f"{override.where}: {problem}" if shared == len(path) else f"{override.where}: {'.'.join(path)}: {problem}"
    where = f"{base.name}, line {base.lines[written]}" if base.lines else base.name
    return f"{where}: {'.'.join(path) or 'configuration'}: {problem}"


def fold(decode: Any, changes: Mapping[str, Any], *, chosen: bool = False) -> tuple[Any, Written]:
    """The section `decode` with shorthands written into its search.

    chosen: the kind of search was named together with the changes, so `beam` does not change it. Raises ConfigError for a
    shorthand that the search does not use.
    """
    search = _search(decode)
    if not changes or search is None:
        return decode, {}
    sample, kind = _flag(changes), search["kind"]
    if sample:
        kind = "sample"
    elif not chosen and ("beam" in changes or (sample is False and kind == "sample")):
        kind = "beam"
    if chosen and kind != search["kind"]:
        raise ConfigError(f"decode.sample: decode.search is {search['kind']}; leave one of the two out")
    folded, written, unused = _merge(search, changes, kind)
    if unused:
        owners = [each for each in find_table(SEARCHES) if NAMES.get(unused[0], unused[0]) in _options(each)]
        raise ConfigError(f"decode.{unused[0]}: the search {kind} does not use it; set decode.search to {' or '.join(owners)}")
    return {**decode, "search": folded}, written


def fold_saved(decode: Any) -> tuple[Any, Written]:
    """The section as it was saved, with shorthands written into its search; those that it does not use are ignored."""
    search = _search(decode)
    flat = {key: value for key, value in decode.items() if key in SHORTHANDS} if search is not None else {}
    if search is None or not flat:
        return decode, {}
    rest = {key: value for key, value in decode.items() if key not in flat}
    folded, written, _ = _merge(search, flat, "sample" if _flag(flat) else search["kind"])
    return {**rest, "search": folded}, written


def _search(decode: Any) -> dict[str, Any] | None:
    """The search of a section as a mapping; None if it is something else, which is for the schema to refuse."""
    search = (decode.get("search") or {}) if isinstance(decode, Mapping) else None
    named = {"kind": search} if isinstance(search, str) else search
    return {"kind": "beam", **named} if isinstance(named, Mapping) and isinstance(named.get("kind", ""), str) else None


def _flag(changes: Mapping[str, Any]) -> bool | None:
    sample = changes.get("sample")
    if sample is not None and not isinstance(sample, bool):
        raise ConfigError(f"decode.sample: must be true or false (given: {sample!r})")
    return sample


def _merge(search: Mapping[str, Any], changes: Mapping[str, Any], kind: str) -> tuple[dict[str, Any], Written, list[str]]:
    """The search as one of this kind, where its options were written, and the changes it has no use for."""
    known = _options(kind)
    same = kind == search["kind"]
    folded = {"kind": kind, **{name: value for name, value in search.items() if name != "kind" and (same or name in known)}}
    written, unused = Written(), []
    for key, value in changes.items():
        name = NAMES.get(key, key)
        if name in known:
            folded[name] = value
            written["search", name] = key
        elif key != "sample":
            unused.append(key)
    return folded, written, unused


def _options(kind: str) -> set[str]:
    return set(options_of(SEARCHES, kind).model_fields) - {"kind"} if kind in find_table(SEARCHES) else set()
