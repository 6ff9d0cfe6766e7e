"""The configuration of a run: one YAML file with the sections data, start, model, task, train and decode.

Validation is strict: an unknown key is an error that names its line and the nearest known key. A configuration is immutable;
`Config.replaced` returns a changed copy. The `config.yaml` that a run saves spells out every default.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from weft.config import schema, yaml_document
from weft.config.corpus_entries import (
    Entry,
    TrainingCorpus,
    ValidationCorpus,
    absolute,
    absolute_path,
    located,
    names,
    parse,
    renamed,
)
from weft.config.kept_schema import kept_schema
from weft.config.overrides import SHORTHANDS, apply_overrides, fold_saved, locate, parse_override, put
from weft.config.plugins import KINDS, advice_if_stale, installed_recipes
from weft.config.registry import Among, NameIn, Options, expand, find_table, problems, suggest
from weft.errors import ConfigError
from weft.file_access import NO_FILE, denied, replace_file, why_unreadable
from weft.runs.migrations import migrate_config
from weft.version import VERSION

Part = dict[str, Any]
"""The options of a part, with its kind."""


if TYPE_CHECKING:
    ResolvedInt = int  # training resolves `auto` before anything reads it
else:
    ResolvedInt = PositiveInt | Literal["auto"]


class Section(Options):
    """A section of the configuration."""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        return expand(cls, data)


class StartSection(Section):
    """The run, or the word vectors, that training starts from."""

    run: str | None = Field(default=None, description="run whose tokenizers and weights a new run starts from; null: none")
    weights: str | None = Field(default=None, description="hash of the weights that were taken from it; set by weft train")
    extend: int = Field(
        default=0,
        ge=0,
        description="tokens to add to its vocabulary; each starts as the mean of those it was written with. With vectors: "
        "words of that file to add to the vocabulary",
    )
    vectors: str | None = Field(
        default=None,
        description="file of word vectors, in the text format of word2vec, GloVe and fastText, that embeddings start with; "
        "null: none",
    )


class TrainSection(Section):
    """Optimisation, validation and checkpoints."""

    steps: PositiveInt = Field(default=10_000, description="number of optimiser steps")
    seconds: float = Field(
        default=0.0, ge=0, description="most seconds of training, into which the schedule is made to fit; 0: no limit"
    )
    budget: Literal["steps", "time"] = Field(
        default="steps",
        description="length of training; time: all of train.seconds, over which the schedule of train.steps is stretched",
    )
    batch_tokens: ResolvedInt = Field(
        default=4096,
        description="tokens per micro-batch on the longer side, including padding; auto: as many as the memory of a GPU holds",
    )
    accumulate: PositiveInt = Field(default=1, description="micro-batches per step, a multiple of the number of processes")
    packed: bool | Literal["auto"] = Field(
        default="auto", description="concatenate sentences instead of padding; auto: on a GPU in bf16, if the model supports it"
    )
    rounded: bool | Literal["auto"] = Field(
        default="auto",
        description="pad to a few fixed sizes and replay CUDA graphs; auto: on a GPU in bf16, if supported and not packed",
    )
    optimizer: Annotated[Part, Among("weft.training:OPTIMIZERS")] = Field(default={"kind": "adamw"}, description="optimiser")
    schedule: Annotated[Part, Among("weft.training:SCHEDULES")] = Field(
        default={"kind": "inverse_sqrt"}, description="learning rate schedule"
    )
    freeze: list[str] = Field(
        default=[], description="weights that stay as they are, by patterns of their names: ['encoder.*', '*.norm.*']"
    )
    layer_factor: float = Field(
        default=1.0,
        ge=1,
        description="rate of each layer divided by that of the layer below it; Howard & Ruder 2018: 2.6",
    )
    unfreeze_every: int = Field(
        default=0, ge=0, description="train the highest layer first, and one more layer after this many steps; 0: all at once"
    )
    clip: float = Field(default=1.0, ge=0, description="maximum gradient norm; 0: no clipping")
    ema: float = Field(default=0.0, ge=0, lt=1, description="decay of a moving average of the weights; 0: none")
    precision: Literal["float32", "bf16"] = Field(
        default="float32", description="bf16: autocast with float32 weights; float32 on CPUs without bf16"
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, mps, …")
    threads: int = Field(default=0, ge=0, description="number of CPU threads; 0: one per core")
    compile: bool | Literal["auto"] = Field(
        default="auto",
        description="torch.compile the model; auto: for packed Transformers with full attention and ≥ 30M weights on a GPU",
    )
    recompute: bool = Field(
        default=False,
        description="compute the activations of each layer again in the backward pass: less memory, steps a third longer",
    )
    shard: bool = Field(
        default=False,
        description="divide weights, gradients and the optimiser's state among the processes of torchrun, which saves memory",
    )
    seed: int = Field(default=1, ge=0, lt=1 << 63, description="random seed of initial weights, data order and dropout")
    log_every: PositiveInt = Field(default=50, description="steps between log lines")
    validate_every: int = Field(default=500, ge=0, description="steps between validations; 0: only at the end")
    validate_bleu: bool = Field(default=True, description="also decode the validation data and score the output")
    validate_sentences: int = Field(default=500, ge=0, description="sentences to decode per validation; 0: all")
    metrics: list[Annotated[str, NameIn("weft.evaluation:METRICS")]] = Field(
        default=[],
        description="further metrics of texts, for validations, weft evaluate and best_by: ter, or those of packages",
    )
    tokenize: str = Field(
        default="auto",
        description="sacreBLEU's tokenizer for BLEU: 13a, zh, ja-mecab, char, …; auto: by data.target_language, else by script",
    )
    save_every: PositiveInt = Field(default=500, description="steps between checkpoints")
    keep_last: PositiveInt = Field(default=3, description="checkpoints to keep besides the best one")
    keep_best: bool = Field(default=True, description="keep the best checkpoint and publish it as the run's model")
    average_last: int = Field(default=0, ge=0, description="publish the average of this many checkpoints; 0: none")
    best_by: str = Field(default="loss", description="metric that decides which checkpoint is best, one that the task declares")
    patience: int = Field(default=0, ge=0, description="stop after this many validations without improvement; 0: never")
    max_bad_steps: PositiveInt = Field(default=10, description="stop after this many consecutive steps with a non-finite loss")
    tensorboard: bool = Field(default=True, description="write TensorBoard events if the package is installed")
    trackers: list[Annotated[str, NameIn("weft.training:TRACKERS")]] = Field(
        default=[], description="programs of others that receive the curves: trackio, wandb, mlflow; each is an extra"
    )


SCHEMA_FILE = "weft.schema.json"
"""Editors use this file, next to a configuration, to complete and check keys."""


class DataSection(Section):
    """Training data and tokenisation."""

    train: list[Annotated[str | TrainingCorpus, Entry(TrainingCorpus)]] = Field(
        default=[],
        description="training data: 'a.en,a.de', x.tsv#2,3, x.jsonl#en,de, x.csv#en,de, also .gz; several corpora: "
        "[{files: …, weight: …, tag: …, noise: …}, …]",
    )
    valid: list[Annotated[str | ValidationCorpus, Entry(ValidationCorpus)]] = Field(
        default=[], description="validation data, in the same formats; [{files: …, tag: …}, …] are scored one by one"
    )
    temperature: PositiveFloat = Field(
        default=1.0,
        description="corpora without weights are drawn in proportion to their pairs to the power of 1 / temperature",
    )
    hold_out: int = Field(default=0, ge=0, description="pairs of the training data to hold out and validate on; 0: none")
    teacher: str | None = Field(
        default=None, description="run whose translations replace the targets of the training data (sequence distillation)"
    )
    tokenizer: Annotated[Part, Among("weft.data:TOKENIZERS")] = Field(
        default={"kind": "bpe"}, description="how text is split into tokens"
    )
    tokenizer_of: str | None = Field(
        default=None, description="run whose tokenizer is used; a language model uses that of its targets"
    )
    vocabulary: PositiveInt = Field(default=8000, description="largest vocabulary (of each side, if they are separate)")
    shared_vocabulary: bool = Field(default=True, description="use one vocabulary for source and target")
    max_length: PositiveInt = Field(default=256, description="leave out pairs with more tokens than this on either side")
    max_ratio: PositiveFloat | None = Field(default=None, description="leave out pairs whose lengths differ by a larger factor")
    drop_duplicates: bool = Field(default=False, description="keep only the first of identical pairs")
    source_language: str | None = Field(
        default=None, description="source language code, such as en, for sentences and weft serve"
    )
    target_language: str | None = Field(default=None, description="target language code, such as de, for BLEU and weft serve")
    cache: str | None = Field(default=None, description="folder for tokenised data; default: the user's cache folder")
    processes: PositiveInt | Literal["auto"] = Field(
        default="auto", description="processes that tokenise; auto: one per core for large data, at most 16"
    )

    @property
    def validates(self) -> bool:
        """Whether there is validation data."""
        return bool(self.valid or self.hold_out)

    @property
    def files(self) -> list[str]:
        """The names of all training files."""
        return names(self.train)


class DecodeSection(Section):
    """Settings of the answers of a trained model."""

    shorthands: ClassVar[tuple[str, ...]] = SHORTHANDS

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        return expand(cls, fold_saved(data)[0])

    search: Annotated[Part, Among("weft.decoding:SEARCHES")] = Field(
        default={"kind": "beam"}, description="how a text is found"
    )
    rerank: Annotated[Part, Among("weft.decoding:RERANKS")] = Field(
        default={"kind": "none"}, description="how the texts of the search are ranked again"
    )
    fusion: Annotated[Part, Among("weft.decoding:FUSIONS")] = Field(
        default={"kind": "none"}, description="a language model that takes part in the search"
    )
    tag: str | None = Field(default=None, description="tags of the run (data.train) to put before each source, such as de")
    max_length: PositiveInt = Field(default=256, description="most tokens of a translation")
    max_ratio: PositiveFloat = Field(default=3.0, description="most tokens of a translation per source token, plus 10")
    max_source: PositiveInt = Field(default=1024, description="a line with more tokens is cut and translated in parts")
    sentences: Literal["auto", "off"] = Field(
        default="auto", description="auto: split lines into sentences, as many at a time as the training lines usually have"
    )
    protect: Literal["auto", "off"] | list[Literal["placeholders", "urls", "emails", "numbers"]] = Field(
        default="auto", description="what translations repeat as it is; auto: [placeholders, urls, emails]"
    )
    fuzzy: Literal["auto", "report", "prefix", "terms", "prompt"] = Field(
        default="auto",
        description="use of the fuzzy matches of --memory: report: none; prefix: what both texts begin with is forced; terms: "
        "what they share is required; prompt: the match stands before the text, and its translation before the translation; "
        "auto: prefix if the search can have one, else report",
    )
    context: int = Field(
        default=0, ge=0, description="lines before a line that the model reads with it, if it was trained so (copies.context)"
    )
    term_use: Literal["required", "inline"] = Field(
        default="required",
        description="terms of glossaries; inline: shown in the source instead, for models trained so (copies.terms)",
    )
    min_length: int = Field(default=0, ge=0, description="fewest tokens of a translation")
    into: str | None = Field(
        default=None, description="language to translate into, for models of two languages; default: the second one"
    )
    rules: list[Annotated[str, NameIn("weft.decoding:RULES")]] = Field(
        default=[],
        description="what ties a translation to its source token by token: as many tokens, tokens repeated at the same places, "
        "no token of the source except punctuation",
    )
    n_best: PositiveInt = Field(default=1, description="answers per input; a beam search becomes as wide as this")
    no_repeat_ngram: int = Field(default=0, ge=0, description="never write a sequence of this many tokens twice; 0: off")
    batch_tokens: PositiveInt | Literal["auto"] = Field(
        default="auto", description="source tokens per batch; auto: 4096, on a GPU up to 32768"
    )
    precision: Literal["auto", "float32", "bf16", "int8"] = Field(
        default="auto", description="arithmetic of decoding; auto: bf16 on a GPU, else float32; int8: 8-bit integers, CPU only"
    )
    shortlist: int = Field(default=0, ge=0, le=100, description="likely tokens per source token (weft shortlist); 0: all")
    workers: PositiveInt | Literal["auto"] = Field(
        default="auto", description="worker processes on a CPU; auto: one per core in weft predict and weft evaluate, else 1"
    )
    compile: bool = Field(
        default=False,
        description="GPU: torch.compile the search, which takes seconds per batch size; CPU: compile C++ kernels once, which "
        "takes some seconds and needs a C++ compiler",
    )
    fast: bool = Field(default=False, description="settings that are faster and leave at least 99 % of the texts as they are")


PATHS = (
    "data.cache",
    "data.teacher",
    "data.tokenizer_of",
    "start.run",
    "start.vectors",
    "decode.rerank.run",
    "decode.fusion.run",
    "model.front.run",
)
"""Settings that name a file or a folder, besides the data."""


class Config(Section):
    """The complete configuration of a run."""

    data: DataSection = Field(default_factory=DataSection)
    start: StartSection = Field(default_factory=StartSection)
    model: Annotated[Part, Among("weft.models:MODELS")] = Field(default={"kind": "transformer"})
    task: Annotated[Part, Among("weft.tasks:TASKS")] = Field(default={"kind": "translation"})
    train: TrainSection = Field(default_factory=TrainSection)
    decode: DecodeSection = Field(default_factory=DecodeSection)

    def replaced(self, changes: Mapping[str, Any]) -> Config:
        """A copy with other values, by path: `config.replaced({"train.steps": 500})`. Raises ConfigError if it is not valid."""
        data = self.model_dump()
        for path, value in changes.items():
            put(data, tuple(path.split(".")), value, path)
        return _validated(data, lambda path, text: f"{'.'.join(path)}: {text}")

    def with_data(
        self, train: str | Sequence[Any] = (), valid: str | Sequence[Any] = (), teacher: str | Path | None = None
    ) -> Config:
        """A copy with other data, where it is given: the entries of --data and --valid, and the run of --teacher."""
        changes: dict[str, Any] = {
            path: [parse(entry, option) for entry in ([entries] if isinstance(entries, str) else entries)]
            for path, option, entries in (("data.train", "--data", train), ("data.valid", "--valid", valid))
            if entries
        }
        return self.replaced(changes | ({} if teacher is None else {"data.teacher": str(teacher)}))

    def absolute(self) -> Config:
        """A copy that names its files by absolute paths. A relative path belongs to the current folder."""
        here, changes = Path.cwd(), {key: getattr(self.data, key) for key in ("train", "valid")}
        located: dict[str, Any] = {
            f"data.{key}": renamed(specs, lambda name: absolute(name, here)) for key, specs in changes.items()
        }
        written: Any = self.model_dump()
        for path in PATHS:
            if place := functools.reduce(lambda data, key: data.get(key, {}), path.split("."), written):
                located[path] = absolute_path(place, here)
        return self.replaced(located)


def override_texts(set: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Overrides as `--set` takes them: {"train.steps": 500} becomes ["train.steps=500"]."""
    return [f"{key}={yaml_document.scalar(value)}" for key, value in set.items()] if isinstance(set, Mapping) else list(set)


Source = str | Path | Mapping[str, Any]
"""A named recipe, a YAML file, or the plain data of a configuration."""


def load_config(source: Source, sets: Sequence[str] = (), *, over: Mapping[str, Any] | None = None) -> Config:
    """Loads a configuration and applies `sets` ("train.steps=500"). `over` replaces values first, by path.

    Relative data paths in a file belong to its folder or, if they are not there, to the current folder. Raises ConfigError
    with the file, the line and the nearest known key.
    """
    base = yaml_document.Document("configuration", dict(source)) if isinstance(source, Mapping) else _read(source)
    overrides = [parse_override(text) for text in sets]
    data = expand(Config, migrate_config(base.data))
    if not isinstance(source, Mapping) and str(source) not in recipes():
        _locate_data(data.get("data"), Path(source).absolute().parent)
    for path, value in (over or {}).items():
        put(data, tuple(path.split(".")), value, path)
    written = apply_overrides(data, overrides, base)
    return _validated(data, lambda path, text: locate(written.get(path, path), text, base, overrides))


def _validated(data: Mapping[str, Any], message: Callable[[yaml_document.Path, str], str]) -> Config:
    """The configuration of plain data. `message` says what is wrong with the value at a path."""
    expanded = expand(Config, data)
    try:
        return Config.model_validate(expanded)
    except ValidationError as error:
        wrong = problems(error, Config, expanded)
    raise ConfigError("\n".join(message(tuple(path), text) for path, text in wrong))


def _locate_data(section: Any, folder: Path) -> None:
    """Makes data paths that exist in `folder` absolute, in place. Values of wrong types are left for the validation."""
    for key in ("train", "valid"):
        specs = section.get(key) if isinstance(section, dict) else None
        if isinstance(specs, list) and all(isinstance(spec, str | Mapping) for spec in specs):
            section[key] = renamed(specs, lambda name: located(name, folder))


def recipes() -> dict[str, Path]:
    """The recipes of weft and of installed packages, by name. Raises ConfigError if two have one name."""
    own = {file.stem: file for file in Path(__file__).parent.joinpath("recipes").glob("*.yaml")}
    for name in own.keys() & installed_recipes().keys():
        raise ConfigError(f"{installed_recipes()[name]}: there is a recipe of this name in weft; rename it")
    return dict(sorted((own | installed_recipes()).items()))


def recipe_summary(path: Path) -> str:
    """The first line of a recipe, which summarises it."""
    return path.read_text("utf-8").split("\n")[0].removeprefix("#").strip()


def save_config(config: Config, path: str | Path) -> None:
    """Writes `config` with every default, so that a later version with other defaults builds the same model."""
    path = Path(path)
    replace_file(path, _header(path.parent) + yaml_document.write(config.model_dump()))


def commented_yaml(config: Config) -> str:
    """`config` as YAML with every default and a comment on each key."""
    return _header(None) + schema.commented(Config, config.model_dump())


def json_schema() -> dict[str, Any]:
    """The JSON schema of a configuration file, for editors and other programs."""
    return {"title": "weft configuration", **schema.json_schema(Config)}


def save_schema(folder: str | Path) -> Path:
    """Writes the JSON schema into `folder`. Configurations saved there afterwards refer to it."""
    path = Path(folder) / SCHEMA_FILE
    parts = tuple(part for tables in KINDS.values() for table in tables for part in find_table(table).items())
    replace_file(path, _schema_text(parts))
    return path


@functools.cache
def _schema_text(parts: tuple[tuple[str, str], ...]) -> str:
    """The JSON schema with these parts."""
    return kept_schema(parts, lambda: json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n")


def _header(folder: Path | None) -> str:
    lines = [f"# written by weft {VERSION}"]
    if folder is not None and (folder / SCHEMA_FILE).exists():
        lines.append(f"# yaml-language-server: $schema={SCHEMA_FILE}")
    return "\n".join(lines) + "\n"


def _read(path_or_recipe: str | Path) -> yaml_document.Document:
    known = recipes()
    name = str(path_or_recipe)
    path = known[name] if name in known and isinstance(path_or_recipe, str) else Path(path_or_recipe)
    if not os.path.exists(path) and why_unreadable(path) == NO_FILE:
        raise ConfigError(f"{name}: there is no such file or recipe; {suggest(name, known)}{advice_if_stale()}")
    try:
        return yaml_document.read(path.read_text("utf-8"), name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        problem = (
            denied(path, "read it") if isinstance(error, PermissionError) else f"the file cannot be read: {error.strerror}"
        )
        raise ConfigError(f"{name}: {problem}") from None
