"""Adapted runs: the folders RUN/adapted/0001, 0002, … in which `weft adapt` leaves adapters of RUN, and versions of models.

The newest one that is complete is the one that a server uses. To take an adaptation back, remove its folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.file_access import replace_file
from weft.runs.packed_run import unpacked
from weft.runs.run_folder import weights_hash

ADAPTED = "adapted"
"""The folder in a run that holds its adapted runs."""

FACTS = "adapted.json"
"""The file that makes an adapted run complete: how it was made and how it scores."""


def newest_adapted(run: Path) -> Path | None:
    """The newest complete adapted run of a run, if there is one."""
    return max((folder for folder in numbered(run) if (folder / FACTS).is_file()), default=None)


def numbered(run: Path) -> list[Path]:
    """The folders of adapted runs, also of those that are not complete."""
    return sorted(folder for folder in (run / ADAPTED).glob("[0-9]*") if folder.is_dir() and folder.name.isdecimal())


def next_folder(run: Path) -> Path:
    """The folder for the next adapted run."""
    return run / ADAPTED / f"{max((int(folder.name) for folder in numbered(run)), default=0) + 1:04}"


def model_version(folders: Sequence[str | Path]) -> str:
    """The version of the model in these run folders: of each a hash of its weights, and the number of its adaptation."""
    return ",".join(_version(unpacked(Path(folder))) for folder in folders)


def _version(run: Path) -> str:
    number = f".adapted-{int(run.name)}" if run.parent.name == ADAPTED and run.name.isdecimal() else ""
    return f"{weights_hash(run)[:8]}{number}"


def complete_adapted(folder: Path, facts: dict[str, Any]) -> None:
    """Makes an adapted run complete, so that servers use it. facts: how it was made, and its scores."""
    replace_file(folder / FACTS, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")
