"""`weft bench`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path

import typer
from rich.console import Console

from weft.cli.progress import StatusLine


class Precision(StrEnum):
    float32 = "float32"
    bf16 = "bf16"
    int8 = "int8"


def bench(
    run: str = typer.Argument(help="Folder of a trained run, a recipe or a YAML file; of these two the first weights."),
    device: str = typer.Option(None, "--device", help="auto, cpu, cuda, cuda:1, …", show_default=False),
    precision: Precision = typer.Option(
        None,
        "--precision",
        help="Of training and decoding, instead of the run's own; int8: of decoding alone.",
        show_default=False,
    ),
    batch: int = typer.Option(32, "--batch", help="Sources or texts that are decoded at once.", min=1),
    beam: int = typer.Option(None, "--beam", help="Beam size; 1 is greedy.", min=1, show_default=False),
    batch_tokens: int = typer.Option(
        None, "--batch-tokens", help="Tokens of a training batch, instead of train.batch_tokens.", min=1, show_default=False
    ),
    length: int = typer.Option(
        None,
        "--length",
        help="Tokens of a text: 32, of a classifier 256, of a language model its segment.",
        min=1,
        show_default=False,
    ),
    rounds: int = typer.Option(5, "--rounds", help="How often each is measured, at most.", min=1),
    profile: Path = typer.Option(
        None, "--profile", help="Draw where the time goes into this file, .png or .svg.", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="A JSON document instead of a table."),
    set: list[str] = typer.Option([], "--set", help="Any setting, e.g. --set model.dim=512. Repeatable.", metavar="KEY=VALUE"),
) -> None:
    """What a step of training and of decoding costs, how long it takes, and how near that is to what the machine can do.

    FLOPs and bytes are counted as operations run, on made-up tokens: no data is needed. The ceilings are measured in the same
    call: products of large matrices, and copies of memory.
    """
    from weft.bench.measure import bench as measured
    from weft.bench.picture import check_file, draw_profile
    from weft.bench.subject import open_subject
    from weft.bench.table import heading, table

    if profile is not None:
        check_file(profile)
    sets = [*set, *_settings(device, precision, batch_tokens)]
    with StatusLine() as line:
        subject = open_subject(run, sets, length)
        found = measured(subject, batch=batch, beam=beam, rounds=rounds, profiled=profile is not None, say=line.show)
    if as_json:
        typer.echo(json.dumps(found.document(), indent=2, ensure_ascii=False))
    else:
        typer.echo(heading(found))
        Console().print(table(found))
    if profile is not None:
        draw_profile(found, profile)
        typer.echo(f"written: {profile}", err=True)


def _settings(device: str | None, precision: Precision | None, batch_tokens: int | None) -> list[str]:
    """Options as changes of the configuration."""
    values = {"train.device": device, "train.batch_tokens": batch_tokens, "decode.precision": precision}
    if precision is not Precision.int8:
        values["train.precision"] = precision
    return [f"{key}={value}" for key, value in values.items() if value is not None]
