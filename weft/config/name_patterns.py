"""Patterns of names, such as `encoder.*`: which weights or modules of a model a setting means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

from weft.errors import ConfigError

SHOWN = 5
"""The most names that a message lists."""


def matching(patterns: Iterable[str], names: Iterable[str], where: str) -> list[str]:
    """The names that one of the patterns matches; `*` is any text. Raises ConfigError for a pattern that matches none."""
    known = list(names)
    found = {pattern: [name for name in known if fnmatchcase(name, pattern)] for pattern in patterns}
    for pattern, matched in found.items():
        if not matched:
            near = difflib.get_close_matches(pattern, known, n=SHOWN, cutoff=0.3) or known[:SHOWN]
            raise ConfigError(f"{where}: no name matches {pattern!r}; there are {len(known):,}, among them {', '.join(near)}")
    chosen = {name for matched in found.values() for name in matched}
    return [name for name in known if name in chosen]
