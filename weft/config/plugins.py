"""Parts of installed packages, declared as entry points of the group `weft.parts`::

    [project.entry-points."weft.parts"]
    "attention.cosine" = "my_package.attention:CosineAttention"

The name is a kind of part (see `KINDS`), a dot, and the name under which a configuration uses it. A configuration can only name
parts that are built in or installed: nothing in a run folder makes weft import a module.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from weft.errors import ConfigError

GROUP = "weft.parts"

KINDS = {
    "attention": ("weft.attention:ATTENTIONS", "weft.attention.mixers:SELF", "weft.models.convs2s:CROSS"),
    "mixer": ("weft.attention.mixers:MIXERS", "weft.attention.mixers:SELF"),
    "pooling": ("weft.models:POOLINGS",),
    "front": ("weft.models:FRONTS",),
    "encoder": ("weft.models:ENCODERS",),
    "decoder": ("weft.models:DECODERS",),
    "search": ("weft.decoding:SEARCHES",),
    "task": ("weft.tasks:TASKS",),
    "reward": ("weft.evaluation:REWARDS",),
}
"""Kind of part → the tables it extends."""


def extended(path: str, built_in: Mapping[str, str]) -> dict[str, str]:
    """The table at `path` with the installed parts that extend it. Raises ConfigError if one has a name that is taken."""
    added = installed_in(path)
    for name in added.keys() & built_in.keys():
        part = added[name]
        raise ConfigError(f"{package_of(part)}: its part {part.name!r} has the name of a built-in part; rename it")
    return {**built_in, **{name: entry.value for name, entry in added.items()}}


def installed_in(path: str) -> dict[str, EntryPoint]:
    """The installed parts that extend the table at `path`, by name."""
    return {name: entry for (kind, name), entry in installed_parts().items() if path in KINDS[kind]}


def package_of(entry: EntryPoint) -> str:
    """The name of the package that declares an entry point."""
    return entry.dist.name if entry.dist else "an unnamed package"


@functools.cache
def installed_parts() -> dict[tuple[str, str], EntryPoint]:
    """The entry point of every installed part, by kind and name. Raises ConfigError for a malformed or ambiguous one."""
    parts: dict[tuple[str, str], EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        kind, dot, name = entry.name.partition(".")
        if kind not in KINDS or not dot or not name:
            raise ConfigError(
                f"{package_of(entry)}: the entry point {entry.name!r} of {GROUP} must be called KIND.NAME, KIND being one of "
                f"{', '.join(KINDS)}"
            )
        other = parts.setdefault((kind, name), entry)
        if other.value != entry.value:
            raise ConfigError(f"{package_of(other)} and {package_of(entry)} both install {entry.name!r}; remove one of them")
    return parts
