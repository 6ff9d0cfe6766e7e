"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import typer

from weft.cli import completion
from weft.config import yaml_document as document
from weft.errors import ConfigError, RunError

PAIRS = "SOURCE,TARGET text files, x.tsv or x.tsv#2,3, x.jsonl or x.jsonl#en,de, x.csv or x.csv#en,de, each also .gz"
"""What names pairs of texts; see docs/data.md."""

RUN = typer.Argument(
    help="Folder of a trained run. Several, joined by commas, form an ensemble.", autocompletion=completion.runs
)
BEAM = typer.Option(None, "--beam", help="Beam size; 1 is greedy.")
TAG = typer.Option(None, "--tag", help="Tag of the run, such as the target language; the same as decode.tag.")
FAST = typer.Option(False, "--fast", help="Faster, with at least 99 % of the texts as they are; the same as decode.fast=true.")
DEVICE = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1, …")
OUTPUT = typer.Option(None, "-o", "--output", help="File to write; default: standard output.")
DECODE_SET = typer.Option([], "--set", help="Any decoding setting, e.g. --set decode.beam=5. Repeatable.", metavar="KEY=VALUE")
ANY_SET = typer.Option(
    [],
    "--set",
    help="Any setting, e.g. --set train.steps=2000. Repeatable.",
    metavar="KEY=VALUE",
    autocompletion=completion.settings,
)


def runs(text: str) -> list[str]:
    """The run folders that `a,b` names. A folder whose name contains a comma is one run."""
    found = [text] if text and os.path.isdir(text) else [part.strip() for part in text.split(",")]
    if not all(found):
        raise RunError(f"{text!r} names no run folder, or one too few; write RUN, or RUN,RUN for an ensemble")
    return found


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
        options[name.removesuffix(".kind")] = document.value(value, f"--set {text}")
    return options | {name: value for name, value in flags.items() if value is not None}
