"""Shorthands for options of `decode.search`: `decode.beam=5` for `decode.search: {kind: beam, width: 5}`, and the like.

Configurations saved before `decode.search` existed have these keys too, all of them with their defaults. There, keys that the
search does not use are ignored; in a change that somebody makes now, they are an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.config.registry import find_table, options_of
from weft.errors import ConfigError

SEARCHES = "weft.search:SEARCHES"
NAMES = {"beam": "width"}
SHORTHANDS = ("beam", "length_penalty", "stop", "sample", "temperature", "top_k", "top_p", "seed")
Written = dict[tuple[str, ...], str]
"""The path of an option below `decode` → the shorthand it was written as."""


def is_shorthand(*path: str) -> bool:
    """Whether a path below `decode` is a shorthand."""
    return len(path) == 1 and path[0] in SHORTHANDS


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
    if search is None or not any(is_shorthand(key) for key in decode):
        return decode, {}
    rest = {key: value for key, value in decode.items() if not is_shorthand(key)}
    flat = {key: value for key, value in decode.items() if is_shorthand(key)}
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
