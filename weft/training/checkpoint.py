"""Checkpoints: everything needed to resume exactly. They are written under a temporary name and renamed when complete.

A checkpoint is the folder `checkpoints/step-00000500` of a run:

    model.safetensors      weights and buffers
    optimizer.safetensors  the optimisers' state, "<optimiser>/<parameter>/<entry>"
    ema.safetensors        the moving average of the weights, if there is one
    carried.safetensors    the tensors that the task carries from update to update, if any
    state.json             progress, the version of weft, the model's fingerprint, size and hash of each file

There is no generator state: the seed of a micro-batch is a function of its position in the data stream.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from weft.batch import Position
from weft.errors import RunError
from weft.runs.folder import CHECKPOINTS, MODEL
from weft.runs.weights import discard, fingerprint, put_tensors, read_tensors, replacing, sync, tensors_of, write_tensors
from weft.training.optimizer import Ema, named_state, names_of, restore_state
from weft.version import VERSION

OPTIMIZER, EMA, CARRIED = "optimizer.safetensors", "ema.safetensors", "carried.safetensors"
STATE = "state.json"


@dataclass
class Progress:
    """The state of a run besides its tensors.

    position  where the next update begins in the stream of batches
    stale     number of validations since the best one
    in_row    number of consecutive steps skipped most recently
    memory    peak memory of training in bytes, up to the first validation of each process
    """

    update: int = 0
    position: Position = field(default_factory=Position)
    best: dict[str, float] = field(default_factory=dict)
    best_step: int | None = None
    stale: int = 0
    skipped: int = 0
    in_row: int = 0
    seconds: float = 0.0
    memory: int = 0


@dataclass(frozen=True)
class TrainingState:
    """The model, its optimisers and its moving average: everything that training changes."""

    model: nn.Module
    optimizers: Mapping[str, Optimizer]
    ema: Ema | None = None


def folder_of(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step:08d}"


def steps(run: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    folders = (run / CHECKPOINTS).glob("step-*")
    return sorted(int(folder.name[5:]) for folder in folders if folder.name[5:].isdigit())


def latest(run: Path) -> Path | None:
    """The newest checkpoint, if there is one."""
    saved = steps(run)
    return folder_of(run, saved[-1]) if saved else None


def save(run: Path, trained: TrainingState, progress: Progress, carried: Mapping[str, Tensor] | None = None) -> Path:
    """Writes a checkpoint. If this fails, earlier checkpoints are intact and no partial one remains."""
    final = folder_of(run, progress.update)
    with replacing(final) as aside:
        aside.mkdir(parents=True)
        _write(aside, trained, progress, carried or {})
    return final


def _write(folder: Path, trained: TrainingState, progress: Progress, carried: Mapping[str, Tensor]) -> None:
    tensors, names = tensors_of(trained.model), names_of(trained.model)
    states = {kind: named_state(optimizer, names) for kind, optimizer in trained.optimizers.items()}
    write_tensors(folder / MODEL, tensors)
    write_tensors(
        folder / OPTIMIZER, {f"{kind}/{key}": value for kind, state in states.items() for key, value in state.items()}
    )
    if trained.ema is not None:
        write_tensors(folder / EMA, trained.ema.average)
    if carried:
        write_tensors(folder / CARRIED, carried)
    files = {file.name: {"bytes": file.stat().st_size, "sha256": _hash(file)} for file in sorted(folder.iterdir())}
    state = {"weft": VERSION, "fingerprint": fingerprint(tensors), "files": files, "progress": asdict(progress)}
    with open(folder / STATE, "w", encoding="utf-8") as out:
        json.dump(state, out, indent=1)
    sync(folder / STATE)
    sync(folder)


def load(folder: Path, trained: TrainingState) -> Progress:
    """Loads a checkpoint's tensors into `trained` and returns its progress."""
    state = check(folder)
    put_tensors(trained.model, read_tensors(folder / MODEL), folder / MODEL)
    names = names_of(trained.model)
    entries = read_tensors(folder / OPTIMIZER)
    for kind, optimizer in trained.optimizers.items():
        mine = {key.removeprefix(f"{kind}/"): tensor for key, tensor in entries.items() if key.startswith(f"{kind}/")}
        restore_state(optimizer, names, mine)
    if trained.ema is not None:
        # A run that had no average so far, or did not train these weights, starts from the loaded weights.
        average = weights(folder)
        for name, tensor in trained.ema.average.items():
            tensor.copy_(average[name])
    progress = dict(state["progress"])
    return Progress(**{**progress, "position": Position(*progress["position"])})


def carried(folder: Path) -> dict[str, Tensor]:
    """The tensors that the task carried when the checkpoint was written."""
    return read_tensors(folder / CARRIED) if (folder / CARRIED).exists() else {}


def check(folder: Path) -> dict[str, Any]:
    """Reads a checkpoint's state.json and checks the size and hash of every file."""
    hint = f"delete {folder} to continue from the previous checkpoint"
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        files = dict(state["files"])
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{folder}: the checkpoint is incomplete (state.json: {error}); {hint}") from None
    for name, facts in files.items():
        file = folder / name
        size = file.stat().st_size if file.exists() else 0
        if size != facts["bytes"]:
            raise RunError(f"{file}: the checkpoint was cut short ({size:,} of {facts['bytes']:,} bytes); {hint}")
        if _hash(file) != facts["sha256"]:
            raise RunError(f"{file}: the checkpoint is damaged (its hash is wrong); {hint}")
    return state


def prune(run: Path, keep_last: int, best: int | None = None) -> None:
    """Removes all checkpoints except the last `keep_last` and the best."""
    for step in steps(run)[:-keep_last]:
        if step != best:
            discard(folder_of(run, step))


def weights(folder: Path) -> dict[str, Tensor]:
    """The weights that were validated: the moving average if there is one, else the weights themselves."""
    tensors = read_tensors(folder / MODEL)
    return {**tensors, **read_tensors(folder / EMA)} if (folder / EMA).exists() else tensors


def newest_steps(run: Path, last: int) -> list[int]:
    """The steps of the newest checkpoints, at most `last`. Raises RunError if there are none."""
    if found := steps(run)[-last:]:
        return found
    raise RunError(f"{run}: there is no checkpoint to average")


def average(run: Path, last: int) -> dict[str, Tensor]:
    """The mean of the weights of the newest checkpoints, at most `last`, summed in float64."""
    averaged = newest_steps(run, last)
    sums: dict[str, Tensor] = {}
    for step in averaged:
        check(folder_of(run, step))
        newest = read_tensors(folder_of(run, step) / MODEL)
        for name, tensor in newest.items():
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
    # Integer tensors, such as counters, have no mean: take the newest.
    return {
        name: (sums[name] / len(averaged)).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in newest.items()
    }


def _hash(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
