"""`weft bench` and `weft doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from weft.cli.options import ANY_SET, FAST, check_device
from weft.cli.output import StatusLine, tell
from weft.errors import WeftError

Precision = StrEnum("Precision", ["float32", "bf16", "int8"])


def bench(
    run: str = typer.Argument(help="Folder of a trained run, a recipe or a YAML file; recipes and files use initial weights."),
    device: str = typer.Option(None, help="auto, cpu, cuda, cuda:1, …", callback=check_device),
    precision: Precision = typer.Option(
        None, help="Precision of training and decoding, instead of the run's own; int8: of decoding only."
    ),
    batch: int = typer.Option(32, help="Sources or texts per decoding batch.", min=1),
    beam: int = typer.Option(None, help="Beam size; 1 is greedy.", min=1),
    batch_tokens: int = typer.Option(None, help="Tokens per training batch; default: train.batch_tokens.", min=1),
    length: int = typer.Option(
        None, help="Tokens per text; default: 32, for a classifier 256, for a language model its segment.", min=1
    ),
    fast: bool = FAST,
    rounds: int = typer.Option(5, help="Maximum number of measurements of each step.", min=1),
    profile: Path = typer.Option(None, help="Draw where the time goes into this file, .png or .svg."),
    as_json: bool = typer.Option(False, "--json", help="A JSON document instead of a table."),
    set: list[str] = ANY_SET,
) -> None:
    """Measure a training step and a decoding step: their cost, their time, and how close that is to the machine's limits.

    FLOPs and bytes are counted as operations run, on random tokens, so no data is needed. The limits are measured in the same
    call: products of large matrices, and copies of memory.
    """
    from weft.bench.speed_report import bench as measured
    from weft.bench.speed_report import check_figure_name, heading, profile_figure, save_figure, speed_table
    from weft.bench.workloads import open_benchmarked_model

    if profile is not None:
        check_figure_name(profile)
    training = None if precision is Precision.int8 else precision
    changes = {"train.device": device, "train.batch_tokens": batch_tokens, "train.precision": training}
    changes |= {"decode.precision": precision, "decode.fast": "true" if fast else None}
    sets = [f"{key}={value}" for key, value in changes.items() if value is not None]
    with StatusLine() as line:
        subject = open_benchmarked_model(run, [*set, *sets], length)
        result = measured(subject, batch=batch, beam=beam, rounds=rounds, profiled=profile is not None, report=line.show)
    if as_json:
        typer.echo(json.dumps(result.document(), indent=2, ensure_ascii=False))
    else:
        typer.echo(heading(result))
        Console().print(speed_table(result))
    if profile is not None:
        save_figure(profile_figure(result), profile)
        tell(f"written: {profile}")


MARKS = {"ok": "[green]✓[/]", "missing": "[yellow]–[/]", "problem": "[bold red]✗[/]"}


def doctor(as_json: bool = typer.Option(False, "--json", help="A JSON document instead of text.")) -> None:
    """Check the installation: versions, devices, kernels, compiler, fonts, extras, cache.

    What is missing but optional is marked by –, what does not work by ✗, each with what to do. The exit status is 1 if
    something does not work.
    """
    from weft.bench.doctor import diagnose

    findings = diagnose()
    broken = [each for each in findings if each.state == "problem"]
    if as_json:
        document = {"ok": not broken, "findings": [asdict(each) for each in findings]}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        console, group = Console(highlight=False, soft_wrap=True), ""
        for each in findings:
            if each.group != group:
                group = each.group
                console.print(f"[bold]{group}[/]")
            console.print(f"  {MARKS[each.state]} {escape(each.name)}: {escape(each.text)}")
            if each.advice:
                console.print(f"      → {escape(each.advice)}")
    if broken:
        names = ", ".join(f"{each.group} {each.name}" for each in broken)
        raise WeftError(f"{len(broken)} {'problem' if len(broken) == 1 else 'problems'}: {names}")
