"""`weft bench`, `weft compare` and `weft doctor`."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from weft.cli.input_and_output import StatusLine, tell
from weft.cli.options import ANY_SET, FAST, check_device, check_engine
from weft.errors import ConfigError, Interrupted, RunError, WeftError

if TYPE_CHECKING:
    from weft.bench.compare.plan import Comparison


Precision = StrEnum("Precision", ["float32", "bf16", "int8"])


def bench(
    run: str = typer.Argument(help="Folder of a trained run, a recipe or a YAML file; recipes and files use initial weights."),
    device: str = typer.Option(None, help="auto, cpu, cuda, cuda:1, mps, …", callback=check_device),
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
    from weft.bench.benchmarked_model import open_benchmarked_model
    from weft.bench.speed_report import bench as measured
    from weft.bench.speed_report import check_figure_name, heading, profile_figure, speed_table
    from weft.explain.figures import save_figure

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


LENGTHS = "256,512,1024,2048"


def compare(
    recipes: list[str] = typer.Argument(
        None,
        metavar="RECIPE…",
        help="Recipes or YAML files, with changes after commas: transformer-small,model.encoder_self=local,label=NAME.",
    ),
    budget: str = typer.Option(None, help="Training budget per entry: 10m, 90s, 1.5h, 500-steps or 20k-steps."),
    data: list[str] = typer.Option([], help="Training data, as for `weft train`. Repeatable.", metavar="FILES"),
    valid: list[str] = typer.Option([], help="Validation data. Repeatable.", metavar="FILES"),
    test: list[str] = typer.Option([], help="Test data, which then ranks the entries. Repeatable.", metavar="FILES"),
    out: Path = typer.Option(None, help="Folder for runs and reports; the same command continues there."),
    slot: str = typer.Option(None, help="A slot, such as model.encoder_self, to fill with each of --kinds."),
    kinds: str = typer.Option(
        None, help="Kinds for the slot: full,local,linear, also with options ('{kind: local, window: 8}'), or all."
    ),
    repeat: int = typer.Option(1, help="Trainings per entry, with different seeds, for intervals.", min=1),
    at_once: int = typer.Option(
        1, help="Trainings in parallel on one device (budget in steps); speeds are measured afterwards.", min=1
    ),
    engine: str = typer.Option(
        None,
        metavar="NAME",
        help="ray: trainings on this machine or on the cluster at RAY_ADDRESS, each with a GPU or else a core of its own.",
    ),
    lengths: str = typer.Option(LENGTHS, help="Text lengths at which time and memory are measured; none: skip."),
    sentences: int = typer.Option(
        200, help="Validation sentences that are decoded to measure the speed if there is no --test; 0: none.", min=0
    ),
    set: list[str] = typer.Option([], help="Any setting, for all entries. Repeatable.", metavar="KEY=VALUE"),
    redraw: Path = typer.Option(None, help="Write table, charts and page again from a results.json into --out."),
) -> None:
    """Train several models under one budget and compare them: quality, speed, memory, growth with length.

    Writes results.json, table.csv, chart.png, chart.svg and report.html, one offline page. An interrupted comparison continues
    where it stopped, and its report says how far it got. If an entry fails, the others continue and the exit status is 1.
    """
    if out is None:
        raise ConfigError("give a folder for the runs and the report with --out")
    from weft.bench.compare.comparison_report import read_results
    from weft.bench.compare.plan import Comparison, parse_budget, parse_entries

    if redraw is not None:
        _write(read_results(redraw), out)
        return
    check_engine(engine)
    if budget is None:
        raise ConfigError("give a training budget with --budget, such as 10m or 2k-steps")
    with StatusLine() as line:
        entries = parse_entries(recipes or [], slot, kinds, line.say)
        given = tuple(data), tuple(valid), tuple(test), tuple(set)
        limits = repeat, at_once, _lengths(lengths), sentences, engine
        comparison = Comparison(entries, out, parse_budget(budget), *given, *limits)
        document = _sweep(comparison, line)
    _finish(document, out)


def _sweep(comparison: Comparison, line: StatusLine) -> dict[str, Any]:
    """Runs the comparison. If it is interrupted, the report of what is done so far is written first."""
    from weft.bench.compare.comparison_report import write_report
    from weft.bench.compare.sweep import Sweep

    sweep = Sweep(comparison, line.say, line.show)
    try:
        return sweep()
    except Interrupted:
        write_report(sweep.results(), comparison.out)
        raise


def _finish(document: dict[str, Any], out: Path) -> None:
    """Shows and writes the results. Raises RunError afterwards if a training failed."""
    from weft.bench.compare.results import failures, terminal_table

    console = Console(highlight=False)
    console.print(terminal_table(document, console.width))
    _write(document, out)
    if failed := failures(document):
        count = sum(len(row["runs"]) for row in document["entries"])
        raise RunError(f"{len(failed)} of {count} trainings failed:\n" + "\n".join(failed))


def _lengths(text: str) -> tuple[int, ...]:
    if text.strip() in ("", "none", "0"):
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--lengths {text}: write numbers of tokens joined by commas, such as {LENGTHS}, or none")
    return tuple(sorted({int(part) for part in parts}))


def _write(document: dict[str, Any], out: Path) -> None:
    from weft.bench.compare.comparison_report import write_report

    tell(f"written: {' '.join(shlex.quote(str(file)) for file in write_report(document, out))}")
