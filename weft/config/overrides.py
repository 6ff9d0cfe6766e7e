"""Changes of a configuration: `--set section.key=value`, and shorthands of the section `decode`.

`decode.beam=5` is a shorthand for `decode.search: {kind: beam, width: 5}`. A shorthand that the search does not use is ignored
in a file, beside a search, and an error in a change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.config.registry import find_table, options_of
from weft.config.yaml_document import Document, Path, scalar, value
from weft.errors import ConfigError

SEARCHES = "weft.decoding:SEARCHES"
NAMES = {"beam": "width"}
SHORTHANDS = ("beam", "length_penalty", "stop", "sample", "temperature", "top_k", "top_p", "seed")
Written = dict[tuple[str, ...], str]
"""The path of an option below `decode` → the shorthand it was written as."""


@dataclass(frozen=True)
class Override:
    """One change: the path of keys, the new value, and what error messages call it."""

    path: Path
    value: Any
    where: str

    @property
    def shorthand(self) -> bool:
        return len(self.path) == 2 and self.path[0] == "decode" and self.path[1] in SHORTHANDS


def parse_override(text: str) -> Override:
    """Parses "a.b=c". Naming the kind of a part, "a.b.kind=c", is the same as "a.b=c"."""
    key, equals, written = text.partition("=")
    path = tuple(step.strip() for step in key.split("."))
    if not equals or not all(path):
        raise ConfigError(f"--set {text}: expected section.key=value, such as train.steps=500")
    if len(path) > 1 and path[-1] == "kind":
        path = path[:-1]
    return Override(path, value(written, f"--set {text}"), f"--set {text}")


def apply_overrides(data: dict[str, Any], overrides: Sequence[Override], base: Document | None = None) -> dict[Path, Path]:
    """Writes all overrides into `data`, in place. `base`, if given, forgets the lines of the values they replace.

    Shorthands of `decode` are expanded; the result maps the paths of their options to the paths that were written.
    """
    data["decode"], written = fold_saved(data.get("decode", {}))
    short = {override.path[1]: override.value for override in overrides if override.shorthand}
    # Shorter paths first, so that `model.encoder_self=local` never undoes `model.encoder_self.window=8`.
    for override in sorted(overrides, key=lambda override: len(override.path)):
        path = override.path
        if not override.shorthand and put(data, path, override.value, override.where) and base is not None:
            base.lines = {key: line for key, line in base.lines.items() if key[: len(path)] != path}
    chosen = any(override.path == ("decode", "search") for override in overrides)
    data["decode"], more = fold(data["decode"], short, chosen=chosen)
    return {("decode", *path): ("decode", key) for path, key in (written | more).items()}


def put(data: dict[str, Any], path: Path, value: Any, where: str) -> bool:
    """Writes a value into data whose parts are all mappings. Returns whether it changed anything. Errors call it `where`."""
    *parents, last = path
    for depth, key in enumerate(parents, 1):
        below = data.setdefault(key, {})
        if isinstance(below, list):
            return _put_in_list(below, path, depth, value, where)
        if isinstance(below, str):
            below = data[key] = {"kind": below}
        if below is None:
            below = data[key] = {}
        if not isinstance(below, dict):
            raise ConfigError(f"{where}: {'.'.join(path[:depth])} is {scalar(below)}, which has no options")
        data = below
    old = data.get(last)
    if isinstance(old, dict) and isinstance(value, str) and old.get("kind") == value:
        return False  # the part already has this kind and keeps its options
    data[last] = value
    return True


def _put_in_list(items: list[Any], path: Path, depth: int, value: Any, where: str) -> bool:
    """`put` for the rest of a path, from `depth` on, that leads into a list."""
    number, rest = path[depth], path[depth + 1 :]
    if not number.isdecimal() or len(number) > 9 or int(number) >= len(items):
        name = ".".join(path[:depth])
        raise ConfigError(f"{where}: {name} is a list; name one of its entries, {name}.0 to {name}.{len(items) - 1}")
    named = {number: items[int(number)]}
    changed = put(named, (number, *rest), value, where)
    items[int(number)] = named[number]
    return changed


def locate(path: Path, problem: str, base: Document, overrides: Sequence[Override]) -> str:
    """A message that says where the value at `path` was written: in an override, or on a line of the file."""
    # The value itself, or its nearest parent that the file mentions.
    written = next(path[:depth] for depth in range(len(path), -1, -1) if depth == 0 or path[:depth] in base.lines)
    for override in overrides:
        shared = min(len(override.path), len(path))
        if override.path[:shared] == path[:shared] and shared > len(written):
            return f"{override.where}: {problem}" if shared == len(path) else f"{override.where}: {'.'.join(path)}: {problem}"
    where = f"{base.name}, line {base.lines[written]}" if base.lines else base.name
    return f"{where}: {'.'.join(path) or 'configuration'}: {problem}"


def fold(decode: Any, changes: Mapping[str, Any], *, chosen: bool = False, saved: bool = False) -> tuple[Any, Written]:
    """The section `decode` with shorthands written into its search.

    chosen: the kind of search was named together with the changes, so `beam` does not change it · saved: the changes were
    saved with the section, so those that the search does not use are ignored instead of raising ConfigError.
    """
    search, sample = _search(decode), changes.get("sample")
    if not changes or search is None:
        return decode, {}
    if not isinstance(sample, bool | None):
        raise ConfigError(f"decode.sample: must be true or false (given: {sample!r})")
    kind = search["kind"]
    if sample:
        kind = "sample"
    elif not (chosen or saved) and ("beam" in changes or (sample is False and kind == "sample")):
        kind = "beam"
    if chosen and kind != search["kind"]:
        raise ConfigError(f"decode.sample: decode.search is {search['kind']}; leave one of the two out")
    known, names = _options(kind), {key: NAMES.get(key, key) for key in changes if key != "sample"}
    if not saved and (unused := [key for key, name in names.items() if name not in known]):
        owners = [each for each in find_table(SEARCHES) if names[unused[0]] in _options(each)]
        raise ConfigError(f"decode.{unused[0]}: the search {kind} does not use it; set decode.search to {' or '.join(owners)}")
    kept = {name: value for name, value in search.items() if kind == search["kind"] or name in known}
    options = {name: changes[key] for key, name in names.items() if name in known}
    written: Written = {("search", name): key for key, name in names.items() if name in known}
    return {**decode, "search": {**kept, **options, "kind": kind}}, written


def fold_saved(decode: Any) -> tuple[Any, Written]:
    """The section as it was saved, with its shorthands written into its search."""
    flat = {key: decode[key] for key in SHORTHANDS if key in decode} if _search(decode) is not None else {}
    return fold({key: value for key, value in decode.items() if key not in flat}, flat, saved=True) if flat else (decode, {})


def _search(decode: Any) -> dict[str, Any] | None:
    """The search of a section as a mapping; None if it is something else, which is for the schema to refuse."""
    search = (decode.get("search") or {}) if isinstance(decode, Mapping) else None
    named = {"kind": search} if isinstance(search, str) else search
    return {"kind": "beam", **named} if isinstance(named, Mapping) and isinstance(named.get("kind", ""), str) else None


def _options(kind: str) -> set[str]:
    return set(options_of(SEARCHES, kind).model_fields) - {"kind"} if kind in find_table(SEARCHES) else set()
