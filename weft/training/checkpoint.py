"""Checkpoints: everything needed to resume exactly. They are written under a temporary name and renamed when complete.

A checkpoint is the folder `checkpoints/step-00000500` of a run:

    model.safetensors      weights and buffers
    optimizer.safetensors  the optimisers' state, "<optimiser>/<parameter>/<entry>"
    ema.safetensors        the moving average of the weights, if there is one
    carried.safetensors    the tensors that the task carries from update to update, if any
    state.json             progress, the version of weft, the model's fingerprint, size and hash of each file

There is no generator state: the seed of a micro-batch is a function of its position in the data stream.

Training also publishes weights, as the run's `model.safetensors`, with a line in `published.jsonl` each time. It replaces what
training has published. Weights that a command has published (`weft average`) stay until training has made further steps, and
then, as whatever such a command replaces, they are kept as `model.average-400.safetensors`.

A resumed run cannot change a setting that the weights, the tokenizer or the position in the data depend on: it would be damaged
although it seems to continue. Other changes are listed in the log.
"""

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from weft.config import yaml_document
from weft.config.corpus_entries import files_of, names
from weft.config.plugins import packages_in
from weft.config.sections import Config, load_config, save_config, save_schema
from weft.data.batch import Position
from weft.errors import ConfigError, DataError, RunError
from weft.file_access import replace_file, sync
from weft.runs.migrations import find_file, write_format
from weft.runs.run_folder import CHECKPOINTS, CONFIG, MODEL
from weft.runs.weight_files import (
    copy_weights,
    discard,
    fingerprint,
    named_weights,
    read_metadata,
    read_tensors,
    replacing,
    write_tensors,
)
from weft.training.ema import Ema
from weft.training.optimizer import named_state, names_of, restore_state
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
    tensors, names = named_weights(trained.model), names_of(trained.model)
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
    copy_weights(trained.model, read_tensors(folder / MODEL), folder / MODEL)
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


def published_by_command(facts: Mapping[str, str]) -> bool:
    """Whether a command other than `weft train` has published weights with this metadata."""
    return facts.get("by", "train") != "train"


def described(facts: Mapping[str, str]) -> str:
    """A name for weights with this metadata, for messages."""
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


WEIGHTS = "the weights were trained with it"
TOKENIZER = "the tokenizer belongs to the run, and the weights to its tokens"
PAIRS = "it selects the training pairs, and the position in the data counts them"
PLACE = "the position in the data depends on it"

FIXED = {
    "model": WEIGHTS,
    "task.kind": "the weights were trained for it",
    "task.pooling": WEIGHTS,
    "task.segment": PLACE,
    "task.carry": PLACE,
    "task.memory": PLACE,
    "data.tokenizer": TOKENIZER,
    "data.tokenizer_of": TOKENIZER,
    "data.vocabulary": TOKENIZER,
    "data.shared_vocabulary": TOKENIZER,
    "start.extend": TOKENIZER,
    "start.vectors": WEIGHTS,
    "data.max_length": PAIRS,
    "data.max_ratio": PAIRS,
    "data.drop_duplicates": PAIRS,
    "data.hold_out": PAIRS,
    "data.teacher": "it wrote the training pairs",
    "data.temperature": PLACE,
    "train.seed": "the order of the data follows from it",
    "train.packed": PLACE,
    "train.rounded": PLACE,
}
"""Settings that cannot change, with everything below them, and the reason. All others may."""

FREE = ("dropout", "attention_dropout", "feedforward_dropout")
"""Options of a model that may change: they have no weights and are not used for inference."""

IDENTITY = "data.id"
"""A file with a hash of the training data."""

INEXACT = {
    "train.batch_tokens": "batches are cut differently, so some pairs of this epoch may be read twice or not at all",
}
"""Settings that may change, but then the run is not the one that an uninterrupted training would give."""


def changes(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by path, each with both values. Of a part of another kind, only the kinds are compared."""
    return dict(_differences(old.model_dump(), new.model_dump(), ""))


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        if old != new:
            yield path, (old, new)
    elif old.get("kind") != new.get("kind"):
        yield f"{path}.kind", (old.get("kind"), new.get("kind"))
    else:
        for key in dict.fromkeys([*old, *new]):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)


def reason(path: str) -> str | None:
    """Why a setting cannot change; None if it may."""
    steps = path.split(".")
    if steps[0] == "model" and steps[-1] in FREE:
        return None
    return next((FIXED[place] for end in range(1, len(steps) + 1) if (place := ".".join(steps[:end])) in FIXED), None)


def check_resumable(run: Path, config: Config) -> list[str]:
    """The changes of settings with which a run is resumed, for its log.

    Raises an error if it cannot be resumed with them, or if training would replace its weights instead of continuing with them.
    """
    if latest(run) is None and (run / MODEL).exists():
        raise RunError(
            f"{run}: it has weights but no checkpoint, so training cannot continue where it stopped; train a new run that "
            f"starts with these weights: `weft train --from {run} --out FOLDER`"
        )
    notes = check_changes(run, config)
    check_data(run, config)
    return notes


def check_changes(run: Path, config: Config) -> list[str]:
    """Messages about the settings that change when `run` is resumed with `config`. Raises ConfigError for those that cannot."""
    differing = changes(trained_config(run), config)
    if refused := {path: values for path, values in differing.items() if reason(path)}:
        lines = [f"  {_shown(path, *values)}: {reason(path)}" for path, values in refused.items()]
        sets = [shlex.quote(f"{path.removesuffix('.kind')}={yaml_document.scalar(new)}") for path, (_, new) in refused.items()]
        again = f"weft train {shlex.quote(str(run / CONFIG))} --out NEW --set {' '.join(sets)}"
        advice = f"Resume without these settings, or train anew: {again}"
        raise ConfigError("\n".join([f"{run}: a resumed run cannot change", *lines, advice]))
    notes = [f"resuming with {', '.join(_shown(path, *values) for path, values in differing.items())}"] if differing else []
    return notes + [f"{path}: {INEXACT[path]}" for path in differing if path in INEXACT]


def _shown(path: str, old: Any, new: Any) -> str:
    return f"{path.removesuffix('.kind')} {yaml_document.scalar(old)} → {yaml_document.scalar(new)}"


def trained_config(run: Path) -> Config:
    """The configuration that the checkpoints of a run were trained with. config.yaml may have been edited since."""
    return load_config(find_file(run, f"{CHECKPOINTS}/{CONFIG}")).absolute()


def save_settings(run: Path, config: Config, identity: str, *, resume: bool) -> None:
    """Saves the configuration of a run that trains now, and a copy beside the checkpoints with the identity of its data."""
    write_format(run, packages=packages_in(config.model_dump()))
    if not resume:
        save_schema(run)
    save_config(config, run / CONFIG)
    (run / CHECKPOINTS).mkdir(exist_ok=True)
    save_config(config, run / CHECKPOINTS / CONFIG)
    replace_file(run / CHECKPOINTS / IDENTITY, f"{identity}\n")


def check_identity(run: Path, identity: str) -> list[str]:
    """A message if the training data is not what the checkpoints were trained on."""
    file = run / CHECKPOINTS / IDENTITY
    if not file.is_file() or file.read_text("utf-8").strip() == identity:
        return []
    return [
        "data.train: the training data has changed since the last step. Training continues from the same position in the new "
        "data, with the tokenizer of the run; the result is not that of an uninterrupted training"
    ]


def check_data(run: Path, config: Config) -> None:
    """Raises DataError if a data file of a resumed run is gone, and says how to name its new place."""
    for option, specs in (("--data", config.data.train), ("--valid", config.data.valid)):
        missing = [path for spec in names(specs) for path in files_of(spec) if not os.path.exists(path)]
        if missing:
            raise DataError(
                f"{', '.join(missing)}: there is no such file, but the run was trained with it. If it has moved, name its new "
                f"place: weft train --resume {shlex.quote(str(run))} {option} FILES"
            )
