"""`weft compare`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from weft.cli.progress import StatusLine
from weft.errors import ConfigError, Interrupted, RunError

if TYPE_CHECKING:
    from weft.compare.entries import Entry
    from weft.compare.plan import Comparison

LENGTHS = "256,512,1024,2048"


RECIPES = typer.Argument(
    None,
    metavar="RECIPE…",
    help="Recipes or YAML files, each optionally with changes after commas: transformer-small,model.encoder_self=local. "
    "label=NAME names the entry.",
    show_default=False,
)
BUDGET = typer.Option(
    None, "--budget", help="Training budget of each entry: 10m, 90s, 1.5h, or 500-steps, 20k-steps.", show_default=False
)
DATA = typer.Option([], "--data", help="Training data, as for `weft train`. Repeatable.", metavar="FILES")
VALID = typer.Option([], "--valid", help="Validation data. Repeatable.", metavar="FILES")
TEST = typer.Option([], "--test", help="Test data; entries are then ranked by their test scores. Repeatable.", metavar="FILES")
OUT = typer.Option(None, "--out", help="Folder for runs and reports; the same command continues there.", show_default=False)
SLOT = typer.Option(
    None,
    "--slot",
    help="A slot of the model, such as model.encoder_self, that is filled with each of --kinds.",
    show_default=False,
)
KINDS = typer.Option(
    None,
    "--kinds",
    help="Kinds for the slot: full,local,linear, also with options ('{kind: local, window: 8}'), or all.",
    show_default=False,
)
REPEAT = typer.Option(1, "--repeat", help="Trainings per entry, with different seeds, for confidence intervals.", min=1)
AT_ONCE = typer.Option(
    1, "--at-once", help="Trainings in parallel on one device (budget in steps); speeds are measured afterwards.", min=1
)
AT_LENGTHS = typer.Option(LENGTHS, "--lengths", help="Text lengths at which time and memory are measured; none: skip.")
SENTENCES = typer.Option(
    200,
    "--sentences",
    help="Validation sentences that are decoded to measure the speed if there is no --test; 0: none.",
    min=0,
)
SET = typer.Option([], "--set", help="Any setting, for all entries. Repeatable.", metavar="KEY=VALUE")
REDRAW = typer.Option(
    None, "--redraw", help="Write table, charts and page again from a results.json into --out.", show_default=False
)


def compare(
    recipes: list[str] = RECIPES,
    budget: str = BUDGET,
    data: list[str] = DATA,
    valid: list[str] = VALID,
    test: list[str] = TEST,
    out: Path = OUT,
    slot: str = SLOT,
    kinds: str = KINDS,
    repeat: int = REPEAT,
    at_once: int = AT_ONCE,
    lengths: str = AT_LENGTHS,
    sentences: int = SENTENCES,
    set: list[str] = SET,
    redraw: Path = REDRAW,
) -> None:
    """Train several models under one budget and compare them: quality, speed, memory, growth with length.

    Writes results.json, table.csv, chart.png, chart.svg and report.html, one offline page. An interrupted comparison continues
    where it stopped, and its report says how far it got. If an entry fails, the others continue and the exit status is 1.
    """
    if out is None:
        raise ConfigError("give a folder for the runs and the report with --out")
    if redraw is not None:
        _redraw(redraw, out)
        return
    if budget is None:
        raise ConfigError("give a training budget with --budget, such as 10m or 2k-steps")
    if (slot is None) != (kinds is None):
        raise ConfigError("--slot and --kinds belong together: --slot model.encoder_self --kinds full,local,linear")
    from weft.compare.budget import parse_budget
    from weft.compare.plan import Comparison

    with StatusLine() as line:
        entries, given = _entries(recipes or [], slot, kinds, line.say), (tuple(data), tuple(valid), tuple(test), tuple(set))
        comparison = Comparison(entries, out, parse_budget(budget), *given, repeat, at_once, _lengths(lengths), sentences)
        document = _sweep(comparison, line)
    _finish(document, out)


def _sweep(comparison: Comparison, line: StatusLine) -> dict[str, Any]:
    """Runs the comparison. If it is interrupted, the report of what is done so far is written first."""
    from weft.compare.report import write_report
    from weft.compare.sweep import Sweep

    sweep = Sweep(comparison, line.say, line.show)
    try:
        return sweep()
    except Interrupted:
        write_report(sweep.results(), comparison.out)
        raise


def _entries(recipes: list[str], slot: str | None, kinds: str, say: Callable[[str], None]) -> tuple[Entry, ...]:
    from weft.compare.entries import labelled, parse_entry, slot_entries

    entries = [parse_entry(text) for text in recipes]
    return tuple(labelled(entries if slot is None else slot_entries(entries, slot, kinds, say)))


def _finish(document: dict[str, Any], out: Path) -> None:
    """Shows and writes the results. Raises RunError afterwards if a training failed."""
    from weft.compare.report import write_report
    from weft.compare.table import failures, terminal_table

    Console(highlight=False).print(terminal_table(document))
    _report_files(write_report(document, out))
    if failed := failures(document):
        count = sum(len(row["runs"]) for row in document["entries"])
        raise RunError(f"{len(failed)} of {count} trainings failed:\n" + "\n".join(failed))


def _redraw(file: Path, out: Path) -> None:
    from weft.compare.report import read_results, write_report

    _report_files(write_report(read_results(file), out))


def _lengths(text: str) -> tuple[int, ...]:
    if text.strip() in ("", "none", "0"):
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--lengths {text}: write numbers of tokens joined by commas, such as {LENGTHS}, or none")
    return tuple(sorted({int(part) for part in parts}))


def _report_files(files: list[Path]) -> None:
    typer.echo(f"written: {' '.join(shlex.quote(str(file)) for file in files)}", err=True)
