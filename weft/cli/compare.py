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
    help="Recipes or YAML files, each also with changes after commas: transformer-small,model.encoder_self=local. "
    "Among them, label=NAME names the entry.",
    show_default=False,
)
BUDGET = typer.Option(
    None, "--budget", help="What each may use: 10m, 90s, 1.5h of training, or 500-steps, 20k-steps.", show_default=False
)
DATA = typer.Option([], "--data", help="Training data, as for `weft train`. Repeatable.", metavar="FILES")
VALID = typer.Option([], "--valid", help="Validation data. Repeatable.", metavar="FILES")
TEST = typer.Option([], "--test", help="Test data: entries are then ranked by their test scores. Repeatable.", metavar="FILES")
OUT = typer.Option(None, "--out", help="Folder for runs and reports; the same command goes on there.", show_default=False)
SLOT = typer.Option(
    None, "--slot", help="A slot of the model, such as model.encoder_self, to fill with each of --kinds.", show_default=False
)
KINDS = typer.Option(
    None,
    "--kinds",
    help="What to put there: full,local,linear, also with options ('{kind: local, window: 8}'), or all.",
    show_default=False,
)
REPEAT = typer.Option(1, "--repeat", help="Trainings of each, from different seeds, for intervals.", min=1)
AT_ONCE = typer.Option(
    1, "--at-once", help="Trainings side by side on one device (budget in steps); speeds are measured afterwards.", min=1
)
AT_LENGTHS = typer.Option(LENGTHS, "--lengths", help="At which time and memory are measured for their growth; none: not.")
SENTENCES = typer.Option(
    200,
    "--sentences",
    help="Of the validation data, decoded to measure the speed where there is no --test; 0: none.",
    min=0,
)
SET = typer.Option([], "--set", help="Any setting, for all entries. Repeatable.", metavar="KEY=VALUE")
REDRAW = typer.Option(
    None, "--redraw", help="Write table, charts and page again from a results.json, into --out.", show_default=False
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
    """Train several models under one budget and set them side by side: quality, speed, memory, growth with length.

    Writes results.json, table.csv, chart.png, chart.svg and report.html, one offline page. What was stopped goes on where it
    was, and the report says how far that is; an entry that fails is reported, the others go on, and the status is then 1.
    """
    if out is None:
        raise ConfigError("say with --out which folder the runs and the report go to")
    if redraw is not None:
        _redraw(redraw, out)
        return
    if budget is None:
        raise ConfigError("say with --budget how long each may be trained, such as 10m or 2k-steps")
    if (slot is None) != (kinds is None):
        raise ConfigError("--slot and --kinds belong together: --slot model.encoder_self --kinds full,local,linear")
    from weft.compare.budget import parse_budget
    from weft.compare.plan import Comparison

    with StatusLine() as line:
        entries, given = _entries(recipes or [], slot, kinds, line.say), (tuple(data), tuple(valid), tuple(test), tuple(set))
        asked = Comparison(entries, out, parse_budget(budget), *given, repeat, at_once, _lengths(lengths), sentences)
        document = _sweep(asked, line)
    _finish(document, out)


def _sweep(comparison: Comparison, line: StatusLine) -> dict[str, Any]:
    """Runs it. If it is stopped, what there is by then is written before it is said."""
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
    """Shows and writes the results. Raises RunError if a training failed: the rest was worth showing, the status says so."""
    from weft.compare.report import write_report
    from weft.compare.table import failures, terminal_table

    Console(highlight=False).print(terminal_table(document))
    _tell_written(write_report(document, out))
    if failed := failures(document):
        count = sum(len(row["runs"]) for row in document["entries"])
        raise RunError(f"{len(failed)} of {count} trainings failed:\n" + "\n".join(failed))


def _redraw(file: Path, out: Path) -> None:
    from weft.compare.report import read_results, write_report

    _tell_written(write_report(read_results(file), out))


def _lengths(text: str) -> tuple[int, ...]:
    if text.strip() in ("", "none", "0"):
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--lengths {text}: write numbers of tokens joined by commas, such as {LENGTHS}, or none")
    return tuple(sorted({int(part) for part in parts}))


def _tell_written(files: list[Path]) -> None:
    typer.echo(f"written: {' '.join(shlex.quote(str(file)) for file in files)}", err=True)
