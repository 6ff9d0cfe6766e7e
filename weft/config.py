"""The configuration of a run: one YAML file with the sections data, model, task, train and decode.

Strict: an unknown key is an error that names the nearest known one and its line. A run's own `config.yaml` has every
default written out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from weft import document, schema
from weft.errors import ConfigError
from weft.registry import Among, Options, expand, problems, suggest
from weft.shorthands import SHORTHANDS, fold, fold_saved, is_shorthand

SCHEMA_FILE = "weft.schema.json"
"""Where it lies beside a configuration, editors complete and check as you type."""


class Section(Options):
    """A part of the configuration with a fixed place."""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        return expand(cls, data)


class DataSection(Section):
    """Where the pairs come from and how text becomes tokens."""

    train: list[str] = Field(
        default=[], description="training data: 'source,target' text files, a .tsv or a .jsonl, each also .gz"
    )
    valid: list[str] = Field(default=[], description="validation data, same forms")
    tokenizer: Annotated[dict[str, Any], Among("weft.data:TOKENIZERS")] = Field(
        default={"kind": "bpe"}, description="how text is cut"
    )
    vocabulary: PositiveInt = Field(default=8000, description="size of the vocabulary (of each, if they are separate)")
    shared_vocabulary: bool = Field(default=True, description="one vocabulary for source and target")
    max_length: PositiveInt = Field(
        default=256, description="pairs with a side of more tokens than this are left out of training"
    )
    max_ratio: PositiveFloat | None = Field(
        default=None, description="pairs whose lengths differ by more than this factor are left out"
    )
    drop_duplicates: bool = Field(default=False, description="keep only the first of pairs that are the same")
    source_language: str | None = Field(default=None, description="code of the source language, such as en, for weft serve")
    target_language: str | None = Field(default=None, description="code of the target language, such as de, for weft serve")
    cache: str | None = Field(default=None, description="folder for tokenised data (by default the user's cache folder)")


class TrainSection(Section):
    """How the weights are found."""

    steps: PositiveInt = Field(default=10_000, description="optimiser steps in all")
    seconds: float = Field(default=0.0, ge=0, description="stop after so many seconds of training, if before; 0: no limit")
    batch_tokens: PositiveInt = Field(default=4096, description="tokens of the longer side in one micro-batch, padding counted")
    accumulate: PositiveInt = Field(
        default=1, description="micro-batches to one step, shared by all processes: a multiple of their number"
    )
    packed: bool | Literal["auto"] = Field(
        default="auto",
        description="sentences one after the other in one row instead of padded rows; auto: on a GPU in bf16, if the model can",
    )
    rounded: bool | Literal["auto"] = Field(
        default="auto",
        description="padded rows in few sizes, whose work a GPU repeats; auto: on a GPU in bf16, if the model can, not packed",
    )
    optimizer: Annotated[dict[str, Any], Among("weft.training:OPTIMIZERS")] = Field(
        default={"kind": "adamw"}, description="how a gradient changes the weights"
    )
    schedule: Annotated[dict[str, Any], Among("weft.training:SCHEDULES")] = Field(
        default={"kind": "inverse_sqrt"}, description="the learning rate at each step"
    )
    clip: float = Field(default=1.0, ge=0, description="largest norm of the gradient; 0 turns clipping off")
    ema: float = Field(
        default=0.0, ge=0, lt=1, description="decay of a moving average of the weights, used for scoring; 0: none"
    )
    precision: Literal["float32", "bf16"] = Field(default="float32", description="bf16: autocast, the weights stay in float32")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, …")
    threads: int = Field(default=0, ge=0, description="CPU threads; 0: as many as there are cores")
    compile: bool | Literal["auto"] = Field(
        default="auto",
        description="torch.compile the model; auto: a Transformer with full attention and 30 million weights, packed, on a GPU",
    )
    seed: int = Field(default=1, ge=0, lt=1 << 63, description="of the weights at the start, the order of the data and dropout")
    log_every: PositiveInt = Field(default=50, description="steps between lines of the log")
    validate_every: int = Field(default=500, ge=0, description="steps between validations; 0: only at the end")
    validate_bleu: bool = Field(default=True, description="decode the validation text and score it, besides the loss")
    validate_sentences: int = Field(default=500, ge=0, description="sentences decoded at a validation; 0: all of them")
    save_every: PositiveInt = Field(default=500, description="steps between checkpoints")
    keep_last: PositiveInt = Field(default=3, description="checkpoints kept besides the best")
    keep_best: bool = Field(default=True, description="keep the checkpoint with the best score, and make it the run's model")
    average_last: int = Field(
        default=0, ge=0, description="at the end, average this many last checkpoints into the run's model"
    )
    best_by: str = Field(default="loss", description="the metric that 'best' means, one of those that the task declares")
    patience: int = Field(default=0, ge=0, description="stop after so many validations without a better score; 0: never")
    max_bad_steps: PositiveInt = Field(default=10, description="stop after so many steps in a row whose loss is not finite")
    tensorboard: bool = Field(default=True, description="write TensorBoard events where the package is installed")


class DecodeSection(Section):
    """How a trained model answers."""

    shorthands: ClassVar[tuple[str, ...]] = SHORTHANDS

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        return expand(cls, fold_saved(data)[0])

    search: Annotated[dict[str, Any], Among("weft.search:SEARCHES")] = Field(
        default={"kind": "beam"}, description="how a text is found"
    )
    rerank: Annotated[dict[str, Any], Among("weft.inference:RERANKS")] = Field(
        default={"kind": "none"}, description="how the texts that the search finds are ranked again"
    )
    max_length: PositiveInt = Field(default=256, description="most tokens of a translation")
    max_ratio: PositiveFloat = Field(default=3.0, description="and most tokens for each source token, 10 added")
    max_source: PositiveInt = Field(default=1024, description="a line of more tokens is cut into parts, translated one by one")
    min_length: int = Field(default=0, ge=0, description="fewest tokens of a translation")
    n_best: PositiveInt = Field(default=1, description="answers per input; a beam search becomes as wide as this")
    no_repeat_ngram: int = Field(default=0, ge=0, description="never write a sequence of this many tokens twice; 0: off")
    batch_tokens: PositiveInt | Literal["auto"] = Field(
        default="auto", description="source tokens decoded at once; auto: 4096, on a GPU up to 32768, by its memory"
    )
    precision: Literal["auto", "float32", "bf16", "int8"] = Field(
        default="auto",
        description="of the arithmetic when decoding; auto: bf16 on a GPU, else float32; int8: in eight bits, on a CPU alone",
    )
    shortlist: int = Field(
        default=0,
        ge=0,
        le=100,
        description="choose among so many tokens for each source token, as weft shortlist counted them; 0: among all",
    )
    workers: PositiveInt | Literal["auto"] = Field(
        default="auto",
        description="processes that decode side by side on a CPU; auto: one a core in weft translate and weft evaluate, else 1",
    )
    compile: bool = Field(
        default=False,
        description="faster steps; on a GPU, torch.compile the search: seconds for each size of batch; on a CPU, compile "
        "kernels of our own once: three seconds, for which a C++ compiler and a CPU with AVX512-VNNI are needed",
    )


class Config(Section):
    """Everything a run is made from."""

    data: DataSection = Field(default_factory=DataSection)
    model: Annotated[dict[str, Any], Among("weft.models:MODELS")] = Field(default={"kind": "transformer"})
    task: Annotated[dict[str, Any], Among("weft.tasks:TASKS")] = Field(default={"kind": "translation"})
    train: TrainSection = Field(default_factory=TrainSection)
    decode: DecodeSection = Field(default_factory=DecodeSection)


def load_config(path_or_recipe: str | Path, sets: Sequence[str] = ()) -> Config:
    """The configuration in a YAML file or a named recipe, with `sets` ("train.steps=500") written over it.

    Raises ConfigError with the file, the line and the nearest known key for whatever is not right.
    """
    base = _read(path_or_recipe)
    changes = [_change(text) for text in sets]
    data = expand(Config, base.data)
    data["decode"], written = fold_saved(data.get("decode", {}))
    short = {path: value for path, value, _ in changes if path[:1] == ("decode",) and is_shorthand(".".join(path[1:]))}
    # Shorter paths first, so that `model.encoder_self=local` never undoes `model.encoder_self.window=8`.
    for path, value, text in sorted(changes, key=lambda change: len(change[0])):
        if path not in short and put(data, path, value, f"--set {text}"):
            base.forget(path)
    chosen = any(path == ("decode", "search") for path, _, _ in changes)
    data["decode"], again = fold(data["decode"], {path[1]: value for path, value in short.items()}, chosen=chosen)
    written |= again
    places = {path: f"--set {text}" for path, _, text in changes}
    return _check(data, base, places, {("decode", *path): ("decode", key) for path, key in written.items()})


def make_config(data: Mapping[str, Any], name: str = "configuration") -> Config:
    """A configuration from plain data. Raises ConfigError where it is not right."""
    return _check(data, document.Document(name, dict(data)), {}, {})


def recipes() -> dict[str, Path]:
    """The named configurations that come with weft."""
    folder = resources.files("weft").joinpath("recipes")
    found = sorted((Path(str(file)) for file in folder.iterdir()), key=lambda file: file.name) if folder.is_dir() else []
    return {file.stem: file for file in found if file.suffix == ".yaml"}


def recipe_summary(path: Path) -> str:
    """The one-line summary a recipe begins with."""
    return path.read_text("utf-8").split("\n")[0].removeprefix("#").strip()


def save_config(config: Config, path: str | Path) -> None:
    """Writes `config` with every default, so that a later weft with other defaults makes the same model.

    It is written aside and renamed: a process that dies here does not take the run's configuration with it.
    """
    path = Path(path)
    aside = path.with_name(f".tmp-{path.name}")
    aside.write_text(_header(path.parent) + document.write(config.model_dump()), "utf-8")
    os.replace(aside, path)


def commented_yaml(config: Config) -> str:
    """`config` with every default and, behind each key, what it does: a file to start from."""
    return _header(None) + schema.commented(Config, config.model_dump())


def describe(config: Config | None = None) -> list[schema.Option]:
    """Every key of `config` (by default, of the default configuration) with type, default and description."""
    return list(schema.describe(Config, (config or Config()).model_dump()))


def json_schema() -> dict[str, Any]:
    """The JSON schema of a configuration file, for editors and other programs."""
    return {"title": "weft configuration", **schema.json_schema(Config)}


def save_schema(folder: str | Path) -> Path:
    """Writes the JSON schema into `folder`; configurations saved there afterwards refer to it."""
    path = Path(folder) / SCHEMA_FILE
    path.write_text(json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def _header(folder: Path | None) -> str:
    try:
        version = metadata.version("weft")
    except metadata.PackageNotFoundError:
        version = "(source tree, not installed)"
    lines = [f"# written by weft {version}"]
    if folder is not None and (folder / SCHEMA_FILE).exists():
        lines.append(f"# yaml-language-server: $schema={SCHEMA_FILE}")
    return "\n".join(lines) + "\n"


def _read(path_or_recipe: str | Path) -> document.Document:
    known = recipes()
    name = str(path_or_recipe)
    path = known[name] if name in known and isinstance(path_or_recipe, str) else Path(path_or_recipe)
    if not path.exists():
        raise ConfigError(f"{name}: there is no such file or recipe; {suggest(name, known)}")
    try:
        return document.read(path.read_text("utf-8"), name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from None


def _change(text: str) -> tuple[document.Path, Any, str]:
    """ "a.b=c" as (path, value, text). A part named in full, "a.b.kind=c", is the same as "a.b=c"."""
    key, equals, value = text.partition("=")
    path = tuple(step.strip() for step in key.split("."))
    if not equals or not all(path):
        raise ConfigError(f"--set {text}: expected section.key=value, such as train.steps=500")
    if len(path) > 1 and path[-1] == "kind":
        path = path[:-1]
    return path, document.value(value, f"--set {text}"), text


def put(data: dict[str, Any], path: document.Path, value: Any, where: str) -> bool:
    """Writes one change into data whose parts are all mappings. False if it changes nothing. `where` names it in errors."""
    *parents, last = path
    for depth, key in enumerate(parents, 1):
        below = data.setdefault(key, {})
        if isinstance(below, str):
            below = data[key] = {"kind": below}
        if not isinstance(below, dict):
            raise ConfigError(f"{where}: {'.'.join(path[:depth])} is {document.scalar(below)}, which has no options")
        data = below
    old = data.get(last)
    if isinstance(old, dict) and isinstance(value, str) and old.get("kind") == value:
        return False  # the part is of this kind already and keeps its options
    data[last] = value
    return True


def _check(
    data: Mapping[str, Any],
    base: document.Document,
    places: Mapping[document.Path, str],
    written: Mapping[document.Path, document.Path],
) -> Config:
    given = expand(Config, data)
    try:
        return Config.model_validate(given)
    except ValidationError as error:
        found = problems(error, Config, given)
    paths = [(written.get(tuple(path), tuple(path)), text) for path, text in found]
    raise ConfigError("\n".join(_complaint(path, text, base, places) for path, text in paths))


def _complaint(path: document.Path, text: str, base: document.Document, places: Mapping[document.Path, str]) -> str:
    """One problem, with where it was written: in a change, or on a line of the file."""
    written = base.nearest(path)
    for place, change in places.items():
        shared = min(len(place), len(path))
        if place[:shared] == path[:shared] and shared > len(written):
            return f"{change}: {text}" if shared == len(path) else f"{change}: {'.'.join(path)}: {text}"
    where = f"{base.name}, line {base.lines[written]}" if base.lines else base.name
    return f"{where}: {'.'.join(path) or 'configuration'}: {text}"
