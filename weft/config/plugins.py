"""Parts of installed packages, declared as entry points of the group `weft.parts`::

    [project.entry-points."weft.parts"]
    "attention.cosine" = "my_package.attention:CosineAttention"

The name is a kind of part (see `KINDS`), a dot, and the name under which a configuration uses it. A configuration can only name
parts that are built in or installed: nothing in a run folder makes weft import a module.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points

from weft.errors import ConfigError

GROUP = "weft.parts"

KINDS = {
    "attention": ("weft.attention:ATTENTIONS", "weft.mixers:SELF", "weft.models.convs2s:CROSS"),
    "mixer": ("weft.mixers:MIXERS", "weft.mixers:SELF"),
    "pooling": ("weft.pooling:POOLINGS",),
    "front": ("weft.models:FRONTS",),
    "encoder": ("weft.models:ENCODERS",),
    "decoder": ("weft.models:DECODERS",),
    "search": ("weft.search:SEARCHES",),
    "task": ("weft.tasks:TASKS",),
}
"""Kind of part → the tables it extends."""


class PartTable(Mapping[str, str]):
    """A built-in table and the installed parts that extend it, which are looked up only where the built-in table ends."""

    def __init__(self, path: str, built_in: Mapping[str, str]) -> None:
        self.path, self.built_in = path, built_in

    def __getitem__(self, kind: str) -> str:
        return self.built_in[kind] if kind in self.built_in else self.installed[kind].value

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from self.installed

    def __len__(self) -> int:
        return len(self.built_in) + len(self.installed)

    @property
    def installed(self) -> dict[str, EntryPoint]:
        """The installed parts that extend the table. Raises ConfigError if one of them has a name that is taken."""
        found = {name: entry for kind, name, entry in installed_parts() if self.path in KINDS[kind]}
        if taken := found.keys() & self.built_in.keys():
            name = min(taken)
            raise ConfigError(
                f"{package_of(found[name])}: its part {found[name].name!r} has the name of a built-in part; rename it"
            )
        return found


def package_of(entry: EntryPoint) -> str:
    """The name of the package that declares an entry point."""
    return entry.dist.name if entry.dist else "an unnamed package"


@functools.cache
def installed_parts() -> list[tuple[str, str, EntryPoint]]:
    """(kind, name, entry point) of every installed part. Raises ConfigError for a malformed or ambiguous one."""
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
    return [(kind, name, entry) for (kind, name), entry in parts.items()]
