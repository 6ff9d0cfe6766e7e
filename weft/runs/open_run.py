"""Opens the folder of a trained run. Every command that uses a trained model starts here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weft.config.plugins import missing_packages
from weft.config.sections import Config, load_config
from weft.errors import ConfigError, RunError
from weft.file_access import why_unreadable
from weft.layers.lora import Lora, add_adapters, merge_adapters
from weft.models.base import Network, Sizes
from weft.runs.device_and_precision import choose_device
from weft.runs.migrations import FORMAT_FILE, check_format, read_packages
from weft.runs.packed_run import unpacked
from weft.runs.run_folder import CONFIG, MODEL
from weft.runs.weight_files import load_weights, zero_initialized
from weft.tasks.base import Ensembles, Task, build_task

Report = Callable[[str], None]
"""Receives messages about the progress."""


def silent(message: str) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class TrainedRun:
    """A trained model with its configuration, its task and the sizes of its vocabularies."""

    folder: Path
    config: Config
    task: Task
    sizes: Sizes
    model: Network


def run_config(folder: Path, sets: Sequence[str] = ()) -> Config:
    """The configuration of a run folder or packed run, with `sets` ("train.steps=500") applied."""
    folder = unpacked(folder)
    if problem := why_unreadable(folder, "run folder"):
        raise RunError(f"{folder}: {problem}")
    if not (folder / CONFIG).is_file():
        stopped = "its training has not made its first step yet; if it was stopped, start it again, without --resume"
        problem = stopped if (folder / FORMAT_FILE).is_file() else f"this is not a run folder: it has no {CONFIG}"
        raise RunError(f"{folder}: {problem}")
    check_format(folder)
    try:
        return load_config(folder / CONFIG, sets)
    except ConfigError:
        if missing := missing_packages(read_packages(folder)):
            raise RunError(f"{folder}: {missing}") from None
        raise


def build_network(task: Task, config: Config, sizes: Sizes) -> Network:
    """The model of a configuration, with its adapters if it has any."""
    model = task.build(config.model, sizes)
    if config.model["lora"] is not None:
        add_adapters(model, Lora(**config.model["lora"]))
    return model


def initial_network(config: Config, folder: Path, sizes: Sizes) -> Network:
    """The model of a configuration with its initial weights, for a run in `folder`."""
    return build_network(build_task(config, folder), config, sizes)


def open_run(folder: Path, sets: Sequence[str] = (), *, device: str = "cpu") -> TrainedRun:
    """Loads a trained run, with `sets` applied to its configuration, onto `device`. Adapters are merged with the weights."""
    folder = unpacked(folder)
    config = run_config(folder, sets)
    if not (folder / MODEL).is_file():
        raise RunError(f"{folder}: there is no {MODEL} yet; training saves the first one after train.save_every steps")
    task = build_task(config, folder)
    sizes = task.reopen()
    with zero_initialized():
        model = build_network(task, config, sizes)
    if config.model["lora"] is not None:
        from weft.runs.warm_start import start_from_base  # which itself opens the run that this one starts from

        start_from_base(model, config, folder)
    load_weights(model, folder / MODEL)
    merge_adapters(model)
    model.borrowed = frozenset()
    return TrainedRun(folder, config, task, sizes, model.to(choose_device(device)))


def open_runs(folders: Sequence[Path], sets: Sequence[str] = (), *, device: str = "cpu") -> TrainedRun:
    """Loads one run, or several as an ensemble. Raises RunError if they do not belong together."""
    first, *others = (open_run(folder, sets, device=device) for folder in folders)
    if not others:
        return first
    for other in others:
        kind, expected = other.config.task["kind"], first.config.task["kind"]
        if kind != expected:
            raise RunError(f"{other.folder}: its task is {kind}, that of {first.folder} is {expected}")
        if not (isinstance(first.task, Ensembles) and isinstance(other.task, Ensembles)):
            raise RunError("models of this task cannot form an ensemble; name one run")
        if first.task.vocabularies() != other.task.vocabularies():
            raise RunError(
                f"{other.folder}: its tokenizer differs from that of {first.folder}; the runs of an ensemble share one"
            )
    assert isinstance(first.task, Ensembles)
    model = first.task.ensemble([run.model for run in (first, *others)])
    return replace(first, model=model.to(first.model.device))
