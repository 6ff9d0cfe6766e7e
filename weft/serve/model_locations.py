"""Locations of models: the run folders that a server names, their languages, and their versions."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from weft.errors import ConfigError
from weft.runs.adapted_runs import model_version, newest_adapted
from weft.runs.run_folder import run_folders

CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
PAIR = re.compile(rf"({CODE.pattern}):({CODE.pattern})|([A-Za-z]{{2,3}})-([A-Za-z]{{2,3}})")


@dataclass(frozen=True)
class ModelLocation:
    """The source of a model: its run folders (several form an ensemble), and its languages if they were named."""

    folders: tuple[str, ...]
    languages: tuple[str, str] | None = None

    def adapted(self) -> ModelLocation:
        """The newest adapted run of this run; this location itself if there is none, and for ensembles."""
        found = newest_adapted(Path(self.folders[0])) if len(self.folders) == 1 else None
        return self if found is None else ModelLocation((str(found),), self.languages)

    @property
    def version(self) -> str:
        """The version of the model that is there now."""
        return model_version(self.folders)


class ModelVersion(NamedTuple):
    """One state of a model: its run folders, and the times and sizes of their files."""

    location: ModelLocation
    files: tuple[tuple[int, int], ...]


def parse_location(text: str) -> ModelLocation:
    """Parses `RUN`, or `RUN,RUN` for an ensemble; either may start with its languages: `en-de=RUN`, `zh-Hans:en=RUN`."""
    pair, equals, rest = text.partition("=")
    if not equals or os.path.exists(text):
        return ModelLocation(tuple(run_folders(text)))
    match = PAIR.fullmatch(pair.strip())
    if match is None:
        run = rest or "RUN"
        raise ConfigError(f"{text}: {pair!r} is not a language pair; write en-de={run}, or zh-Hans:en={run}")
    source, target = [code for code in match.groups() if code]
    return ModelLocation(tuple(run_folders(rest)), (source, target))
