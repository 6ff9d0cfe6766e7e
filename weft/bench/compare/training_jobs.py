"""One training as a user would start it from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.bench.compare.subprocesses import Failure, Processes
from weft.config.corpus_entries import parse
from weft.config.sections import Config, load_config
from weft.layers.kernels import computes_bf16
from weft.runs.device import choose_device
from weft.runs.open_run import run_config
from weft.runs.run_folder import CONFIG, complete, records
from weft.training.auto.auto_recipe import AUTO
from weft.training.warm_start_settings import inherited

__all__ = ["Training", "complete", "records", "train"]

LOWERED = (("data", "vocabulary"), ("data", "hold_out"), ("train", "batch_tokens"), ("train", "average_last"))
"""Sizes that a run lowers to what its data and its steps allow."""


@dataclass(frozen=True)
class Training:
    """A recipe with changes and data; empty data means the data of the recipe.

    time: what `--time` says, if anything · start: the run that `--from` names, if any
    """

    recipe: str
    data: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    time: str = ""
    start: str = ""

    def config(self) -> Config:
        given = {"data.train": [*map(parse, self.data)], "data.valid": [*map(parse, self.valid)]}
        base = load_config(self.recipe)
        over = inherited(Path(self.start), base, new_data=bool(self.data)) if self.start else None
        config = load_config(self.recipe, self.sets, over=over).replaced({key: files for key, files in given.items() if files})
        return config.absolute()

    def words(self, folder: Path) -> list[str]:
        """The arguments of `weft` that start it."""
        start = (self.start,) if self.start else ()
        given = [("--from", start), ("--data", self.data), ("--valid", self.valid), ("--set", self.sets)]
        options = [word for flag, values in given for value in values for word in (flag, value)]
        return ["train", self.recipe, "--out", str(folder), *options, *(("--time", self.time) if self.time else ())]


def train(training: Training, folder: Path, processes: Processes, log: str, module: str = "weft") -> None:
    """Trains in `folder`. Resumes an interrupted run, and does nothing if the run is complete.

    module: the Python module with the command line of weft
    """
    started = (folder / CONFIG).exists()
    if started:
        wanted = training.config()
        chosen = training.recipe == AUTO or training.time
        if not chosen and _as_wished(run_config(folder), wanted) != wanted:
            raise Failure(f"{folder} holds a run with other settings; remove it, or choose another --out")
    if not (started and complete(folder)):
        processes(log, ["train", "--resume", str(folder)] if started else training.words(folder), module)


def _as_wished(saved: Config, wanted: Config) -> Config:
    """The configuration of a run as it was before `auto` was resolved and sizes were lowered to what the data allows.

    bf16 became float32 on a CPU that cannot compute in it.
    """
    resolved: dict[str, Any] = {f"train.{key}": "auto" for key in ("packed", "rounded") if getattr(wanted.train, key) == "auto"}
    resolved["start.weights"] = wanted.start.weights
    for section, key in LOWERED:
        wish = getattr(getattr(wanted, section), key)
        if getattr(getattr(saved, section), key) < wish:
            resolved[f"{section}.{key}"] = wish
    both = saved.train.precision, wanted.train.precision
    if both == ("float32", "bf16") and not computes_bf16(choose_device(saved.train.device)):
        resolved["train.precision"] = "bf16"
    warmup = wanted.train.schedule.get("warmup", 0)
    if saved.train.schedule.get("warmup", 0) < warmup and warmup >= wanted.train.steps:
        resolved["train.schedule.warmup"] = warmup
    return saved.replaced(resolved)
