"""Whether and how a run continues: the settings that may change, those that cannot, and its data."""

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.config import yaml_document
from weft.config.corpus_entries import files_of, names
from weft.config.plugins import packages_in
from weft.config.sections import Config, load_config, save_config, save_schema
from weft.errors import ConfigError, DataError, RunError
from weft.file_access import make_folder, replace_file
from weft.runs.migrations import find_file, write_format
from weft.runs.run_folder import CHECKPOINTS, CONFIG, MODEL
from weft.training import checkpoint

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
    if checkpoint.latest(run) is None and (run / MODEL).exists():
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
    make_folder(run / CHECKPOINTS)
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


def begun(run: Path) -> bool:
    """Whether a run has saved a checkpoint."""
    return checkpoint.latest(run) is not None


def seconds_trained(run: Path) -> float:
    """The time that the newest checkpoint of a run took; 0 if there is none."""
    newest = checkpoint.latest(run)
    return 0.0 if newest is None else float(checkpoint.check(newest)["progress"]["seconds"])
