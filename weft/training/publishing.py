"""Published weights: the run's `model.safetensors`, and `published.jsonl` with a line for each time it was replaced.

Training replaces what training has published. Weights that a command has published (`weft average`) stay until training
has made further steps, and then, as whatever such a command replaces, they are kept as `model.average-400.safetensors`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from torch import Tensor

from weft.runs.folder import MODEL
from weft.runs.weights import read_metadata, replacing, write_tensors
from weft.version import VERSION

HISTORY = "published.jsonl"
Publisher = Literal["train", "average", "merge"]


def publish(run: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, str], *, by: Publisher = "train") -> Path | None:
    """Replaces `model.safetensors` atomically; `facts` become its metadata. Returns where the earlier file is kept."""
    target, facts = run / MODEL, {"by": by, **facts}
    before = published(run)
    aside = None
    if before and (by != "train" or by_hand(before)) and facts.items() - before.items():
        aside = _free(run, f"model.{before.get('weights', 'earlier')}-{before.get('step', 0)}")
    with replacing(target) as new:
        write_tensors(new, tensors, {"version": VERSION, **facts})
        if aside is not None:
            _keep(target, aside)
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **facts, **({"kept": aside.name} if aside else {})}
    with open(run / HISTORY, "a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    return aside


def published(run: Path) -> dict[str, str]:
    """The metadata of the published weights; empty if there are none yet."""
    return read_metadata(run / MODEL) if (run / MODEL).exists() else {}


def by_hand(facts: Mapping[str, str]) -> bool:
    """Whether a command other than `weft train` has published weights with this metadata."""
    # Earlier versions did not save `by`; they saved `averaged` in `weft average` only.
    return facts.get("by", "average" if "averaged" in facts else "train") != "train"


def described(facts: Mapping[str, str]) -> str:
    """What weights with this metadata are, for messages."""
    if "averaged" in facts:
        return f"the average of steps {facts['averaged'].replace(',', ', ')}"
    return f"the {facts.get('weights', 'unknown')} weights of step {facts.get('step', 'unknown')}"


def _free(run: Path, stem: str) -> Path:
    names = [f"{stem}.safetensors", *(f"{stem}-{number}.safetensors" for number in range(2, 10_000))]
    return next(run / name for name in names if not (run / name).exists())


def _keep(file: Path, aside: Path) -> None:
    """Gives a file a second name, so that it survives when the first name is replaced."""
    try:
        os.link(file, aside)
    except OSError:  # not every file system has links
        shutil.copyfile(file, aside)
