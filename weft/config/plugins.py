"""Parts and recipes of installed packages, declared as entry points::

    [project.entry-points."weft.parts"]
    "attention.cosine" = "my_package.attention:CosineAttention"

    [project.entry-points."weft.recipes"]
    my_package = "my_package:recipes"

The name of a part is a kind (see `KINDS`), a dot, and the name under which a configuration uses it. Recipes are the YAML files
of a folder, here that of `recipes` in `my_package`. A configuration can only name parts that are built in or installed: nothing
in a run folder makes weft import a module. The package weft_studies, which comes with weft, is registered in the same way.
"""

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, distributions, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from weft.errors import ConfigError
from weft.version import DISTRIBUTION

GROUP = "weft.parts"
RECIPES = "weft.recipes"
BUNDLED = "weft_studies"
"""The package of the same distribution."""
REINSTALL = f"reinstall {DISTRIBUTION}, in a checkout with: pip install -e ."

KINDS = {
    "attention": ("weft.attention:ATTENTIONS", "weft.attention.mixers:SELF", "weft.attention:CROSS"),
    "mixer": ("weft.attention.mixers:MIXERS", "weft.attention.mixers:SELF"),
    "pooling": ("weft.models:POOLINGS",),
    "front": ("weft.models:FRONTS",),
    "encoder": ("weft.models:ENCODERS",),
    "decoder": ("weft.models:DECODERS",),
    "model": ("weft.models:MODELS",),
    "search": ("weft.decoding:SEARCHES",),
    "rule": ("weft.decoding:RULES",),
    "task": ("weft.tasks:TASKS",),
    "reward": ("weft.evaluation:REWARDS",),
    "metric": ("weft.evaluation:METRICS",),
    "loss": ("weft.losses:LOSSES",),
    "tokenizer": ("weft.data:TOKENIZERS",),
    "optimizer": ("weft.training:OPTIMIZERS",),
    "schedule": ("weft.training:SCHEDULES",),
    "generator": ("weft.data:GENERATORS",),
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


def is_bundled(entry: EntryPoint) -> bool:
    """Whether a part comes with weft."""
    return entry.module.partition(".")[0] == BUNDLED


def packages_in(settings: Any) -> dict[str, str]:
    """The other packages, with their versions, of which a configuration, as plain data, may name a part."""
    texts = {text.removeprefix("generated:").partition("?")[0] for text in _texts(settings)}
    parts = [entry for (_, name), entry in installed_parts().items() if name in texts and not is_bundled(entry)]
    return {entry.dist.name: entry.dist.version for entry in parts if entry.dist}


def _texts(settings: Any) -> Iterator[str]:
    """All texts in plain data."""
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping | Sequence):
        for each in settings.values() if isinstance(settings, Mapping) else settings:
            yield from _texts(each)


def missing_packages(packages: Mapping[str, str]) -> str:
    """A sentence about those of the packages that are not installed; empty if all are."""
    installed = {each.name for each in distributions()}
    missing = [f"{name}=={version}" for name, version in packages.items() if name not in installed]
    if not missing:
        return ""
    them = "the package" if len(missing) == 1 else "the packages"
    return (
        f"it was trained with parts of {them} {', '.join(name.partition('==')[0] for name in missing)}, not installed here; "
        f"install: pip install {' '.join(missing)}"
    )


def advice_if_stale() -> str:
    """The end of a message about an unknown name, if pip has not seen the entry points of this code yet; otherwise nothing."""
    return "" if any(map(is_bundled, installed_parts().values())) else f" ({BUNDLED} is not registered; {REINSTALL})"


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


@functools.cache
def installed_recipes() -> dict[str, Path]:
    """The recipes of installed packages, by name. No package is imported for them. Raises ConfigError for two of one name."""
    found: dict[str, Path] = {}
    for entry in entry_points(group=RECIPES):
        package = find_spec(entry.module)
        for folder in package.submodule_search_locations or () if package else ():
            for path in sorted(Path(folder, entry.attr).glob("*.yaml")):
                if found.setdefault(path.stem, path) != path:
                    raise ConfigError(f"{package_of(entry)}: its recipe {path.stem!r} has the name of another; rename it")
    return found


class RenamedMembers:
    """A base class whose subclasses in other packages may still use old names of members, with a warning.

    renamed: old name → new name.
    """

    renamed: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old in cls.renamed.keys() & vars(cls).keys():
            message = f"{cls.__module__}.{cls.__name__}: {old} is called {cls.renamed[old]} now"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            setattr(cls, cls.renamed[old], vars(cls)[old])
