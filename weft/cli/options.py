"""Options that several commands share, their completion in the shell, and the help of commands.

Nothing here imports torch, so that completion (`weft --install-completion`) answers at once.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from weft.config import yaml_document
from weft.errors import ConfigError, DeviceError


@dataclass(frozen=True)
class PartList:
    """A list of `weft list`: a table of parts, and the settings that name one of them; in words, if `--set` does not."""

    table: str
    settings: tuple[str, ...] = ()
    words: str = ""

    def usage(self) -> str:
        return self.words or ", ".join(f"--set {setting}=KIND" for setting in self.settings)


SELF = ("model.encoder_self", "model.decoder_self")
LISTS = {
    "models": PartList("weft.models:MODELS", ("model",)),
    "fronts": PartList("weft.models:FRONTS", ("model.front",)),
    "encoders": PartList("weft.models:ENCODERS", ("model.encoder",)),
    "decoders": PartList("weft.models:DECODERS", ("model.decoder",)),
    "attentions": PartList("weft.attention:ATTENTIONS", (*SELF, "model.cross", "model.attention")),
    "mixers": PartList("weft.attention.mixers:MIXERS", SELF),
    "patterns": PartList("weft.attention.core.sparsity_patterns:PATTERNS", (), "options of the attentions joined and mixed"),
    "positions": PartList(
        "weft.layers:POSITIONS", (), "--set model.position=KIND, for the last three --set model.encoder_self.position=KIND"
    ),
    "cells": PartList("weft.layers:CELLS", ("model.cell",)),
    "canvases": PartList("weft.models:CANVASES", ("model.decoder.canvas",)),
    "poolings": PartList("weft.models:POOLINGS", ("task.pooling",)),
    "comparisons": PartList("weft.tasks.pairs:COMPARISONS", ("task.comparison",)),
    "estimators": PartList("weft.tasks.quality:ESTIMATORS", ("task.estimator",)),
    "readers": PartList("weft.tasks.reading:READERS", ("task.reader",)),
    "tasks": PartList("weft.tasks:TASKS", ("task",)),
    "searches": PartList("weft.decoding:SEARCHES", ("decode.search",)),
    "rules": PartList("weft.decoding:RULES", ("decode.rules",)),
    "reranks": PartList("weft.decoding:RERANKS", ("decode.rerank",)),
    "fusions": PartList("weft.decoding:FUSIONS", ("decode.fusion",)),
    "metrics": PartList("weft.evaluation:METRICS", ("train.metrics",)),
    "tokenizers": PartList("weft.data:TOKENIZERS", ("data.tokenizer",)),
    "generators": PartList("weft.data:GENERATORS", (), "--data generated:KIND"),
    "losses": PartList("weft.losses:LOSSES", ("task.loss",)),
    "samplings": PartList("weft.losses:SAMPLINGS", ("task.sampling",)),
    "decays": PartList("weft.losses:DECAYS", ("task.sampling.decay",)),
    "objectives": PartList("weft.losses:REWARD_OBJECTIVES", ("task.reward",)),
    "rewards": PartList("weft.evaluation:REWARDS", ("task.reward.metric",)),
    "optimizers": PartList("weft.training:OPTIMIZERS", ("train.optimizer",)),
    "schedules": PartList("weft.training:SCHEDULES", ("train.schedule",)),
    "trackers": PartList("weft.training:TRACKERS", ("train.trackers",)),
}
"""The lists of `weft list`, besides recipes."""


def recipes(incomplete: str) -> list[str]:
    """Recipes, YAML files and folders that begin so."""
    from weft.config.sections import recipes as known

    files = [path for path in _paths(incomplete) if path.endswith(("/", ".yaml"))]
    return [*(name for name in known() if name.startswith(incomplete)), *files]


def complete_runs(incomplete: str) -> list[str]:
    """Run folders, and folders that may contain some, after the last comma of an ensemble."""
    before, comma, last = incomplete.rpartition(",")
    folders = [path for path in _paths(last) if path.endswith("/")]
    return [f"{before}{comma}{path.rstrip('/') if Path(path, 'config.yaml').is_file() else path}" for path in folders]


def settings(incomplete: str) -> list[str]:
    """Sections and keys for `--set`, and the kinds of attentions and mixers behind `model.encoder_self=` and the like."""
    from weft.config.registry import find_table
    from weft.config.sections import Config

    key, equals, value = incomplete.partition("=")
    if equals:
        tables = [each.table for each in LISTS.values() if key in each.settings]
        return [f"{key}={kind}" for table in tables for kind in find_table(table) if kind.startswith(value)]
    if "." not in incomplete:
        return [f"{section}." for section in Config.model_fields if section.startswith(incomplete)]
    sections = {name: getattr(field.annotation, "model_fields", ()) for name, field in Config.model_fields.items()}
    keys = [f"{section}.{name}" for section, names in sections.items() for name in names]
    keys += {name: 0 for each in LISTS.values() for name in each.settings if "." in name}
    return [f"{name}=" for name in keys if name.startswith(incomplete)]


def _paths(incomplete: str) -> list[str]:
    """Files and folders that begin so; folders end in a slash."""
    folder, slash, start = incomplete.rpartition("/")
    where = Path(folder or ("/" if slash else "."))
    try:
        entries = sorted(where.iterdir())
    except OSError:
        return []
    names = [entry for entry in entries if entry.name.startswith(start) and not (entry.name.startswith(".") and not start)]
    return [f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}" for entry in names]


VALUES = {"bool": "", "int": "N", "float": "X", "str": "TEXT", "Path": "FILE"}
"""Names for the value of an option in the help, by the type of its parameter; a flag has none."""

NAMES = {
    "against": "RUN",
    "budget": "TIME",
    "device": "DEVICE",
    "head": "HEAD",
    "host": "ADDRESS",
    "kinds": "KINDS",
    "lengths": "NUMBERS",
    "out": "FOLDER",
    "proxy": "ADDRESS",
    "recipe": "RECIPE",
    "slot": "SLOT",
    "tokenize": "NAME",
}
"""The same by the name of the parameter, where that says more."""

EXAMPLES = {
    "import": ["weft import opus-mt-en-de --out runs/opus", "weft import marian/model.npz --out runs/marian"],
    "export": [
        "weft export runs/a --to ctranslate2 --out a.ct2 --quantization int8",
        "weft export runs/a --to onnx --out a.onnx",
    ],
    "pack": ["weft pack runs/a -o a.weft", 'weft translate a.weft "A dog runs."'],
    "push": ["weft push runs/a user/en-de", "weft push runs/a user/en-de --private"],
    "pull": ["weft pull user/en-de --out runs/b"],
    "unpack": ["weft unpack a.weft --out runs/b"],
    "train": [
        "weft train auto --data train.en,train.de --out runs/a --time 20m",
        "weft train transformer-small --data train.en,train.de --valid val.en,val.de",
        "weft train my.yaml --data corpus.tsv#2,3 --valid val.csv#en,de --out runs/a",
        "weft train transformer-small --from runs/a --data new.tsv --out runs/b",
        "weft train --resume runs/a",
    ],
    "translate": [
        "weft translate runs/a input.txt -o output.txt",
        'weft translate runs/a "A dog runs."',
        "cat input.txt | weft translate runs/a --beam 5 --json",
        "weft translate runs/a input.txt -o output.txt --shard 2/8",
        "weft translate runs/a input.txt --quality runs/quality --json",
    ],
    "predict": ["weft predict runs/reviews texts.txt -o labels.txt", 'weft predict runs/reviews "A fine film."'],
    "adapt": ["weft adapt runs/a --memory corrections.tmx", "weft adapt runs/a --memory new.tsv --old train.tsv --time 5m"],
    "serve": [
        "weft serve runs/a",
        "weft serve en-de=runs/a --quality runs/quality",
        "weft serve en-de=runs/a de-en=runs/b --host 0.0.0.0 --api-keys keys.txt",
    ],
    "watch": ["weft watch", "weft watch runs --control", "weft watch /shared/runs --host 0.0.0.0 --api-keys keys.txt"],
    "data check": [
        "weft data check train.en,train.de --report page.html",
        "weft data check memory.tmx#en,de --test test.tsv --json",
    ],
    "data clean": [
        "weft data clean memory.tmx#en,de web.en,web.de -o clean.tsv --report page.html",
        "weft data clean web.jsonl.zst -o clean-2.jsonl --shard 2/8 --choices choices.yaml --test test.tsv",
        "weft data clean web.tsv -o clean.tsv --models runs/ende,runs/deen --train-models 10m",
    ],
    "quality calibrate": ["weft quality calibrate runs/quality --data quality-val.jsonl --test quality-test.jsonl"],
    "quality data": [
        "weft quality data transformer-small --data train.en,train.de --valid val.en,val.de --out quality.jsonl",
        "weft quality data --run runs/a --data val.en,val.de --out quality-val.jsonl",
    ],
    "evaluate": [
        "weft evaluate runs/a --data test.en,test.de",
        "weft evaluate runs/a --data test.tsv#2,3 --against runs/b -o output.txt.gz",
    ],
    "explain": ['weft explain runs/a "A dog runs." -o page.html', 'weft explain runs/a "A dog runs." -o attention.png --words'],
    "align": ["weft align runs/a --data test.en,test.de -o links.txt", "weft align runs/a --data test.tsv --gold gold.txt"],
    "generate": ['weft generate runs/text "Once upon a time" --tokens 100', "weft generate runs/text --count 3 -o texts.txt"],
    "compare": [
        "weft compare transformer-tiny rnn-luong --data train.tsv --budget 10m --out runs/c",
        "weft compare transformer-tiny --slot model.encoder_self --kinds full,local "
        "--data train.tsv --budget 500-steps --out runs/c",
    ],
    "search": [
        "weft search transformer-small --set-space model.dropout=0..0.4 train.schedule.rate=1e-4..3e-3:log "
        "--budget 5m --trials 20 --data train.tsv --valid val.tsv --out runs/s",
        "weft search rnn-luong --set-space 'model.attention=dot|general' --budget 2k-steps --data train.tsv --valid val.tsv "
        "--out runs/s",
    ],
    "bench": ["weft bench runs/a --batch 1 --beam 4", "weft bench transformer-small --profile profile.png"],
    "distill": [
        "weft distill runs/a --data train.en,train.de --out distilled.de",
        "weft distill runs/a --data train.tsv --out distilled.jsonl --beam 5",
        "weft distill runs/a --data train.tsv --out distilled.jsonl --engine ray",
    ],
    "dictionary": [
        "weft dictionary en-fr.tsv --data en=english.txt --data fr=french.txt",
        "weft dictionary en-fr.tsv --gold gold.tsv",
        "weft dictionary en-fr.tsv --translate input.txt -o output.txt",
    ],
    "phrases": [
        "weft phrases en-fr --data en=english.txt --data fr=french.txt",
        "weft phrases en-fr --translate input.txt --into fr -o output.txt",
    ],
    "vectors": [
        "weft vectors text.txt more.txt.gz -o words.vec",
        "weft vectors tokenized.txt -o words.vec.gz --width 128 --spaces",
    ],
    "backtranslate": [
        "weft backtranslate runs/deen --data mono.de --out backtranslated.jsonl",
        "weft backtranslate runs/deen --data mono.de --out part2.jsonl --shard 2/8 --set decode.search=sample",
    ],
    "iterate": [
        "weft iterate transformer-small --data pairs.tsv --valid val.tsv --target-text mono.de --source-text mono.en "
        "--out runs/i"
    ],
    "shortlist": ["weft shortlist runs/a"],
    "merge": ["weft merge runs/adapted --out runs/merged"],
    "average": ["weft average runs/a --last 5", "weft average runs/a --last 5 --out runs/mean"],
    "list": ["weft list", "weft list attentions", "weft list attentions --json"],
    "new": ["weft new my.yaml", "weft new my.yaml --recipe rnn-luong --set train.steps=2000"],
    "doctor": ["weft doctor", "weft doctor --json"],
    "demo": ["weft demo", "weft demo --out runs/dates --set train.steps=500"],
}
"""Examples by command. They are parsed in a test."""


def examples(name: str) -> str | None:
    """The end of the help of a command."""
    return "\n\n".join(["Examples:", *(f"  {each}" for each in EXAMPLES[name])]) if name in EXAMPLES else None


def _type_name(annotation: Any) -> str:
    """The annotation of a parameter as it is written in the code."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation).replace("pathlib.", "")


class _PlainHelp:
    """Help that names the values of parameters by what is expected instead of by types of Python."""

    callback: Callable[..., Any] | None

    def get_params(self, ctx: Any) -> list[Any]:
        types = {name: _type_name(kind) for name, kind in inspect.get_annotations(self.callback or (lambda: None)).items()}
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if param.param_type_name == "argument":
                if param.metavar is None:
                    param.metavar = param.name.upper()
                if types.get(param.name) in ("str", "Path", "list[str]"):
                    param.display_type_rich = lambda ctx: None  # the name says it
            elif getattr(param, "is_flag", False):
                param.metavar = ""
            elif param.metavar is None:
                param.metavar = NAMES.get(param.name) or VALUES.get(types.get(param.name, ""))
        return params


USAGE_ERROR: Any = typer.BadParameter.__base__
"""The class of all errors in the use of a command, which typer does not name."""


class Command(_PlainHelp, TyperCommand):
    """A command. If it takes files as --data, an argument too many is told so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            if "unexpected extra argument" in error.message and any("--data" in param.opts for param in self.params):
                error.message += ". Files with data come after --data"
            raise


class OutputClosed(Exception):
    """The reader of standard output, such as `head`, has ended."""


class Group(_PlainHelp, TyperGroup):
    """The program itself."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would exit with status 1
            raise OutputClosed from None


def check_device(name: str | None) -> str | None:
    """Raises DeviceError if this machine has no such device."""
    if name in (None, "auto", "cpu"):
        return name
    from weft.runs.device_and_precision import choose_device

    try:
        choose_device(str(name))
    except DeviceError as error:
        raise DeviceError(str(error).replace("train.device", "--device")) from None
    return name


PAIRS = "SOURCE,TARGET text files, x.tsv or x.tsv#2,3, x.jsonl or x.jsonl#en,de, x.csv or x.csv#en,de, each also .gz"
"""Names of pairs of texts; see docs/data.md."""

RUN = typer.Argument(help="Folder of a trained run. Several, joined by commas, form an ensemble.", autocompletion=complete_runs)
BEAM = typer.Option(None, "--beam", help="Beam size; 1 is greedy.")
TAG = typer.Option(None, "--tag", help="Tag of the run, such as the target language; the same as decode.tag.")
FAST = typer.Option(False, "--fast", help="Faster decoding; at least 99 % of the texts stay the same. As decode.fast=true.")
DEVICE = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1, mps, …", callback=check_device)
OUTPUT = typer.Option(None, "-o", "--output", help="File to write; default: standard output.")
DECODE_SET = typer.Option([], "--set", help="Any decoding setting, e.g. --set decode.beam=5. Repeatable.", metavar="KEY=VALUE")
SHARD = typer.Option(
    None, "--shard", metavar="K/N", help="Only every N-th shard of the input from the K-th on, to divide work among machines."
)
ENGINE = typer.Option(
    None,
    "--engine",
    metavar="NAME",
    help="ray: divide the input among actors of Ray, on this machine or on the cluster at RAY_ADDRESS.",
)
ACTORS = typer.Option(None, "--actors", min=1, help="Actors of --engine; default: one for each GPU, or else for each core.")
ANY_SET = typer.Option(
    [], "--set", help="Any setting, e.g. --set train.steps=2000. Repeatable.", metavar="KEY=VALUE", autocompletion=settings
)


def parse_share(shard: str | None) -> tuple[int, int] | None:
    """The numbers of `--shard K/N`."""
    if shard is None:
        return None
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", shard.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"--shard {shard}: expected K/N with K from 1 to N, such as 2/8")
    return int(match[1]), int(match[2])


def check_engine(engine: str | None, actors: int | None = None, shard: str | None = None) -> None:
    """Raises an error if there is no such engine, or if the options contradict each other."""
    if engine not in (None, "ray"):
        raise ConfigError(f"--engine {engine}: there is no such engine; ray is the only one")
    if engine is None and actors is not None:
        raise ConfigError("--actors: without an engine there are no actors; add --engine ray")
    if engine is not None and shard is not None:
        raise ConfigError("--shard divides work without an engine; leave it out, or --engine")


MAX_BEAM = 10_000
"""Hypotheses of a beam. More are a mistake, and would end in a lack of memory."""


def decode_options(sets: Sequence[str], **flags: Any) -> dict[str, Any]:
    """Options of the section decode from `--set decode.beam=5` and from the flags that were given."""
    options: dict[str, Any] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        section, dot, name = key.strip().partition(".")
        if not dot:
            section, name = "decode", section
        if not equals or section != "decode" or not name:
            raise ConfigError(f"--set {text}: a trained run only takes decoding settings, such as --set decode.beam=5")
        options[name.removesuffix(".kind")] = yaml_document.value(value, f"--set {text}")
    options |= {name: value for name, value in flags.items() if value is not None}
    if isinstance(beam := options.get("beam"), int) and beam > MAX_BEAM:
        raise ConfigError(f"a beam of {beam:,} hypotheses is more than any memory holds; use at most {MAX_BEAM:,}")
    return options
