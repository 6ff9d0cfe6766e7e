"""Checkpoints: everything needed to resume exactly. They are written under a temporary name and renamed when complete.

A checkpoint is the folder `checkpoints/step-00000500` of a run:

    model.safetensors      weights and buffers
    optimizer.safetensors  the optimisers' state, "<optimiser>/<parameter>/<entry>"
    ema.safetensors        the moving average of the weights, if there is one
    carried.safetensors    the tensors that the task carries from update to update, if any
    state.json             progress, the version of weft, the model's fingerprint, size and hash of each file

The tensors of a sharded training are folders instead, `model`, `optimizer` and `ema`, with a file of each process: see
`weft.training.sharded_checkpoint`. Sharded or not, and on any number of processes, training continues from both.

There is no generator state: the seed of a micro-batch is a function of its position in the data stream.

Training also publishes weights, as the run's `model.safetensors`, with a line in `published.jsonl` each time. It replaces what
training has published. Weights that a command has published (`weft average`) stay until training has made further steps, and
then, as whatever such a command replaces, they are kept as `model.average-400.safetensors`.

A resumed run cannot change a setting that the weights, the tokenizer or the position in the data depend on: it would be damaged
although it seems to continue. Other changes are listed in the log.
"""

import filecmp
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.data.batch import Position
from weft.errors import RunError
from weft.file_access import MALFORMED, appending, unfinished
from weft.runs.distributed_tensors import fill, local
from weft.runs.run_folder import CHECKPOINTS, MODEL
from weft.runs.weight_files import (
    check_same,
    copy_weights,
    discard,
    fingerprint,
    named_weights,
    read_metadata,
    read_tensors,
    replacing,
    save_errors,
    write_tensors,
)
from weft.training.distributed import World
from weft.training.ema import Ema
from weft.training.optimizer import empty_state, named_state, names_of, restore_state
from weft.training.sharded_checkpoint import fill_parts, outline, read_parts, write_parts
from weft.training.sharding import PlainCopy
from weft.version import VERSION

OPTIMIZER, EMA, CARRIED = "optimizer.safetensors", "ema.safetensors", "carried.safetensors"
STATE = "state.json"
PARTS = {name: name.removesuffix(".safetensors") for name in (MODEL, OPTIMIZER, EMA)}
"""The folders that take the place of these files in the checkpoint of a sharded training."""

ALONE = World(0, 1, torch.device("cpu"))

INTACT = "Earlier checkpoints are intact; continue with --resume. train.keep_last sets how many there are"
"""The advice of an error in saving."""


@dataclass
class Progress:
    """The state of a run besides its tensors.

    position  where the next update begins in the stream of batches
    stale     number of validations since the best one
    in_row    number of consecutive steps skipped most recently
    memory    peak memory of training in bytes, up to the first validation of each process
    schedule  the position in the schedule and what it was planned from, see `weft.training.time_budget`; empty in older runs
    parts     parts of each micro-batch that are computed one after the other, because the whole did not fit into memory
    energy    joules, if the machine counts them, see `weft.training.energy`
    start     scores of the weights that the run started with, if they were those of a trained run
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
    schedule: dict[str, Any] = field(default_factory=dict)
    start: dict[str, float] = field(default_factory=dict)
    parts: int = 1
    energy: float = 0.0


@dataclass(frozen=True)
class TrainingState:
    """The model, its optimisers and its moving average: everything that training changes.

    plain: makes whole copies of a model that is divided among processes
    """

    model: nn.Module
    optimizers: Mapping[str, Optimizer]
    ema: Ema | None = None
    plain: PlainCopy | None = None

    def files(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of each file of a checkpoint."""
        names = names_of(self.model)
        states = {kind: named_state(optimizer, names) for kind, optimizer in self.optimizers.items()}
        optimizers = {f"{kind}/{key}": value for kind, state in states.items() for key, value in state.items()}
        averages = {EMA: self.ema.average} if self.ema is not None else {}
        return {MODEL: named_weights(self.model), OPTIMIZER: optimizers, **averages}

    def finite(self) -> bool:
        """Whether all weights and averages that this process holds are finite."""
        tensors = [*self.model.parameters(), *(self.ema.average.values() if self.ema is not None else ())]
        return bool(torch.stack([local(each.detach()).isfinite().all() for each in tensors]).all())


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


def save(
    run: Path,
    trained: TrainingState,
    progress: Progress,
    carried: Mapping[str, Tensor] | None = None,
    world: World = ALONE,
) -> Path:
    """Writes a checkpoint. If this fails, earlier checkpoints are intact and no partial one remains.

    All processes call this together if the model is divided among them, otherwise the first one alone.
    """
    final = folder_of(run, progress.update)
    tensors = trained.files()
    with _written_together(final, world if trained.plain is not None else ALONE) as aside:
        if trained.plain is not None:
            mine = [file for name, named in tensors.items() if named for file in write_parts(aside / PARTS[name], named, world)]
            files = {name: facts for each in world.every(_facts(aside, mine)) for name, facts in each.items()}
            if not world.first:
                return final
        else:
            for name, named in tensors.items():
                write_tensors(aside / name, named)
            files = _facts(aside, [aside / name for name in tensors])
        if carried:
            write_tensors(aside / CARRIED, carried)
            files |= _facts(aside, [aside / CARRIED])
        state = {"weft": VERSION, "fingerprint": fingerprint(tensors[MODEL]), "files": files, "progress": asdict(progress)}
        (aside / STATE).write_text(json.dumps(state, indent=1), "utf-8")
    return final


@contextmanager
def _written_together(final: Path, world: World) -> Iterator[Path]:
    """A folder that all processes write into. The first one makes it, and gives it its name when all are done."""
    if world.first:
        with replacing(final, advice=INTACT) as aside:
            aside.mkdir(parents=True)
            yield world.broadcast(aside)
    else:
        with save_errors(final, INTACT):
            yield world.broadcast(final)


def _facts(folder: Path, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Size and hash of files in a folder."""
    return {file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": _hash(file)} for file in files}


def load(folder: Path, trained: TrainingState, world: World = ALONE) -> Progress:
    """Loads a checkpoint's tensors into `trained` and returns its progress. All processes call this together."""
    state = check(folder, world)
    if (folder / PARTS[MODEL]).is_dir():
        _load_parts(folder, trained, world)
    else:
        _load_files(folder, trained)
    try:
        progress = dict(state["progress"])
        return Progress(**{**progress, "position": Position(*progress["position"])})
    except MALFORMED as error:
        raise RunError(f"{folder / STATE}: the progress of the run cannot be read: {error}") from None


def _load_files(folder: Path, trained: TrainingState) -> None:
    copy_weights(trained.model, read_tensors(folder / MODEL), folder / MODEL)
    _restore_optimizers(trained, read_tensors(folder / OPTIMIZER))
    if trained.ema is not None:
        # A run that had no average so far, or did not train these weights, starts from the loaded weights.
        average = weights(folder)
        for name, tensor in trained.ema.average.items():
            fill(tensor, average[name])


def _load_parts(folder: Path, trained: TrainingState, world: World) -> None:
    """Reads what this process holds of the tensors, or all of them if the model is not divided."""
    model, optimizer, ema = (folder / PARTS[name] for name in (MODEL, OPTIMIZER, EMA))
    expected, names = named_weights(trained.model), names_of(trained.model)
    check_same(expected, outline(model), model)
    fill_parts(model, expected, world)
    saved = outline(optimizer) if optimizer.is_dir() else {}
    entries: dict[str, Tensor] = {}
    for kind, each in trained.optimizers.items():
        mine = {key.removeprefix(f"{kind}/"): tensor for key, tensor in saved.items() if key.startswith(f"{kind}/")}
        entries |= {f"{kind}/{key}": tensor for key, tensor in empty_state(each, names, mine).items()}
    if entries:
        fill_parts(optimizer, entries, world)
    _restore_optimizers(trained, entries)
    if trained.ema is not None:
        known = outline(ema).keys() if ema.is_dir() else ()
        for place, wanted in ((ema, True), (model, False)):
            if some := {name: each for name, each in trained.ema.average.items() if (name in known) == wanted}:
                fill_parts(place, some, world)


def _restore_optimizers(trained: TrainingState, entries: Mapping[str, Tensor]) -> None:
    """Restores the optimisers from the entries of a checkpoint, "<optimiser>/<parameter>/<entry>"."""
    names = names_of(trained.model)
    for kind, optimizer in trained.optimizers.items():
        mine = {key.removeprefix(f"{kind}/"): tensor for key, tensor in entries.items() if key.startswith(f"{kind}/")}
        restore_state(optimizer, names, mine)


def carried(folder: Path) -> dict[str, Tensor]:
    """The tensors that the task carried when the checkpoint was written."""
    return read_tensors(folder / CARRIED) if (folder / CARRIED).exists() else {}


def check(folder: Path, world: World = ALONE) -> dict[str, Any]:
    """Reads a checkpoint's state.json and checks the size and hash of every file, of which each process takes a share."""
    hint = f"delete {folder} to continue from the previous checkpoint"
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        files = {_inside(name): (int(facts["bytes"]), str(facts["sha256"])) for name, facts in state["files"].items()}
    except (OSError, *MALFORMED) as error:
        raise RunError(f"{folder}: the checkpoint is incomplete (state.json: {error}); {hint}") from None
    wrong = ""
    for name, (expected, sha256) in sorted(files.items())[world.rank :: world.size]:
        file = folder / name
        size = file.stat().st_size if file.exists() else 0
        if size != expected:
            wrong = wrong or f"{file}: the checkpoint was cut short ({size:,} of {expected:,} bytes); {hint}"
        elif _hash(file) != sha256:
            wrong = wrong or f"{file}: the checkpoint is damaged (its hash is wrong); {hint}"
    if found := next(filter(None, world.every(wrong)), None):
        raise RunError(found)
    return state


def _inside(name: str) -> str:
    """The name of a file in a checkpoint, which may be in the folder of a sharded training."""
    path = PurePosixPath(name)
    return f"{path.parent.name}/{path.name}" if path.parent.name in PARTS.values() else path.name


def prune(run: Path, keep_last: int, best: int | None = None) -> None:
    """Removes all checkpoints except the last `keep_last` and the best."""
    for step in steps(run)[:-keep_last]:
        if step != best:
            discard(folder_of(run, step))


def weights(folder: Path) -> dict[str, Tensor]:
    """The weights that were validated: the moving average if there is one, else the weights themselves."""
    return {**_tensors(folder, MODEL), **_tensors(folder, EMA)}


def _tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors in a file of a checkpoint, or in the files that take its place; none if there are neither."""
    parts = folder / PARTS[name]
    if parts.is_dir():
        return read_parts(parts)
    return read_tensors(folder / name) if name == MODEL or (folder / name).exists() else {}


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
        newest = _tensors(folder_of(run, step), MODEL)
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


HISTORY = "published.jsonl"
WeightPublisher = Literal["train", "average", "merge"]


def publish(
    run: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, str], *, by: WeightPublisher = "train"
) -> Path | None:
    """Replaces `model.safetensors` atomically; `facts` become its metadata. Returns where the earlier file is kept."""
    target, facts = run / MODEL, {"by": by, **facts}
    before = published(run)
    aside = None
    if before and (by != "train" or published_by_command(before)) and facts.items() - before.items():
        aside = _free(run, f"model.{before.get('weights', 'earlier')}-{before.get('step', 0)}")
    with replacing(target, advice=INTACT if by == "train" else "") as new:
        write_tensors(new, tensors, {"version": VERSION, **facts})
        if aside is not None:
            _keep(target, aside)
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **facts, **({"kept": aside.name} if aside else {})}
    with appending(run / HISTORY) as out:
        out.write(json.dumps(line) + "\n")
    return aside


def published(run: Path) -> dict[str, str]:
    """The metadata of the published weights; empty if there are none yet."""
    return read_metadata(run / MODEL) if (run / MODEL).exists() else {}


def published_by_command(facts: Mapping[str, str]) -> bool:
    """Whether a command other than `weft train` has published weights with this metadata."""
    return facts.get("by", "train") != "train"


def described(facts: Mapping[str, str]) -> str:
    """A name for weights with this metadata, for messages."""
    if "averaged" in facts:
        return f"the average of steps {facts['averaged'].replace(',', ', ')}"
    return f"the {facts.get('weights', 'unknown')} weights of step {facts.get('step', 'unknown')}"


def _free(run: Path, stem: str) -> Path:
    """A new name, or the one under which a process that was killed before it published has kept the weights already."""
    names = [f"{stem}.safetensors", *(f"{stem}-{number}.safetensors" for number in range(2, 10_000))]
    places = (run / name for name in names)
    return next(file for file in places if not file.exists() or filecmp.cmp(file, run / MODEL, shallow=False))


def _keep(file: Path, aside: Path) -> None:
    """Gives a file a second name, so that it survives when the first name is replaced."""
    try:
        os.link(file, aside)
    except FileExistsError:
        return
    except OSError:  # not every file system has links
        with unfinished(aside) as copy:
            shutil.copyfile(file, copy)
            os.replace(copy, aside)
