"""`weft compare`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from weft.cli.output import StatusLine, tell
from weft.errors import ConfigError, Interrupted, RunError

if TYPE_CHECKING:
    from weft.bench.compare.plan import Comparison, Entry

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
    from weft.bench.compare.plan import Comparison, parse_budget

    if redraw is not None:
        _write(read_results(redraw), out)
        return
    if budget is None:
        raise ConfigError("give a training budget with --budget, such as 10m or 2k-steps")
    with StatusLine() as line:
        entries = _entries(recipes or [], slot, kinds, line.say)
        given = tuple(data), tuple(valid), tuple(test), tuple(set)
        comparison = Comparison(entries, out, parse_budget(budget), *given, repeat, at_once, _lengths(lengths), sentences)
        document = _sweep(comparison, line)
    _finish(document, out)


def _entries(recipes: list[str], slot: str | None, kinds: str | None, say: Callable[[str], None]) -> tuple[Entry, ...]:
    from weft.bench.compare.plan import labelled, parse_entry, slot_entries

    if (slot is None) != (kinds is None):
        raise ConfigError("--slot and --kinds belong together: --slot model.encoder_self --kinds full,local,linear")
    entries = [parse_entry(text) for text in recipes]
    return tuple(labelled(slot_entries(entries, slot, kinds, say) if slot and kinds else entries))


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
