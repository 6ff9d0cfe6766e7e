"""The results of a comparison as a table for the terminal and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from weft.bench.compare.results import Row
from weft.bench.compare.seed_statistics import Stat

NONE = "–"
MIB = 2**20
WHOLE = "{:,.0f}".format


@dataclass(frozen=True)
class Column:
    """A column: its heading, the number of a row, which it is sorted by, how to show the number, and a note on its meaning."""

    heading: str
    value: Callable[[Row], float | None]
    form: Callable[[float], str]
    note: str = ""

    def shown(self, row: Row) -> str:
        """The text of a cell."""
        number = self.value(row)
        return NONE if number is None else self.form(number)


class QualityColumn(Column):
    """The headline metric with its interval."""

    def shown(self, row: Row) -> str:
        quality = row["quality"]
        if quality is None:
            return "failed" if row["error"] else NONE
        half = f" ± {(quality['high'] - quality['low']) / 2:.2f}" if quality["low"] is not None else ""
        return f"{self.form(quality['mean'])}{half}"


class RankColumn(Column):
    """The ranks that an entry may have."""

    def shown(self, row: Row) -> str:
        best, worst = row.get("rank") or (None, None)
        return NONE if best is None else f"{best}" if best == worst else f"{best}–{worst}"


def columns(document: dict[str, Any]) -> list[Column]:
    """The columns of the table after the entry itself, without columns for which no entry has a value."""
    headline, counts = document["headline"], document["counts"]
    arrow = "↑" if headline["higher_is_better"] else "↓"
    data = {"valid": "validation", "test": "test"}[headline["data"]]
    alone = "measured in a short separate training" if document["settings"]["at_once"] > 1 else "median over training"
    where = "the process, with the interpreter" if document["about"]["device"].startswith("CPU") else "tensors on the GPU"
    every = [
        QualityColumn(f"{headline['title']} {arrow}", _mean("quality"), "{:.2f}".format, _on(data, headline)),
        RankColumn("rank", _best_rank, WHOLE, "the ranks that the noise between seeds allows, at 5 %"),
        Column("parameters", _mean("parameters"), lambda value: f"{value / 1e6:.2f}M" if value >= 1e5 else f"{value:,.0f}"),
        Column(f"{counts}/s", _mean("speed"), WHOLE, f"in training, {alone}"),
        Column("decoded/s", _mean("decoding"), "{:,.1f}".format, "sentences or texts, with one model at a time"),
        Column("memory MiB", _mean("memory"), lambda value: f"{value / MIB:,.0f}", f"peak memory in training, of {where}"),
        _growth("time", document),
        _growth("memory", document),
        Column("steps", _mean("steps"), WHOLE),
        Column("seconds", _mean("seconds"), WHOLE, "of training"),
    ]
    return [column for column in every if any(column.value(row) is not None for row in document["entries"])]


def _on(data: str, headline: dict[str, Any]) -> str:
    signature = headline.get("signature")
    return f"on the {data} data" + (f" ({signature})" if signature else "")


def column_notes(document: dict[str, Any]) -> list[str]:
    """What the columns mean, one note each."""
    notes = [f"{column.heading.strip(' ↑↓')}: {column.note}" for column in columns(document) if column.note]
    notes.append(seeds_note(document))
    if floors := document.get("floors"):
        notes.append("floors without a neural network: " + ", ".join(f"{name} {value:.2f}" for name, value in floors.items()))
    return notes


def seeds_note(document: dict[str, Any]) -> str:
    """How far the quality can be trusted: its interval over several seeds, or that there is only one."""
    seeds = sorted({len(row["quality"]["values"]) for row in document["entries"] if row["quality"]})
    if not seeds or seeds == [1]:
        return "1 seed per entry: no spread is known, and small differences may be chance (--repeat 3 trains three seeds)"
    counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"± half the 95 % interval of the mean over {counts} seeds, by Student's t"


def terminal_table(document: dict[str, Any]) -> Table:
    """The table for the terminal, with rich."""
    notes = escape("\n".join(column_notes(document)))
    table = Table(title=title(document), title_justify="left", caption=notes, caption_justify="left")
    table.add_column("entry", overflow="fold")
    shown = columns(document)
    for column in shown:
        table.add_column(escape(column.heading), justify="right")
    for row in document["entries"]:
        table.add_row(escape(row["label"]), *(column.shown(row) for column in shown))
    return table


def title(document: dict[str, Any]) -> str:
    about, settings = document["about"], document["settings"]
    return f"{len(document['entries'])} entries · budget: {settings['budget']} each · {about['device']}"


def write_csv(document: dict[str, Any]) -> str:
    """One line per entry with plain numbers: bytes, seconds, counts per second."""
    lines = [_flat(row) for row in document["entries"]]
    names = list(dict.fromkeys(name for line in lines for name in line))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def failures(document: dict[str, Any]) -> list[str]:
    """The trainings that failed, and why."""
    return [
        f"{row['label']}, seed {run['seed']}: {run['error']}"
        for row in document["entries"]
        for run in row["runs"]
        if run["error"]
    ]


def _flat(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {"entry": row["label"], "recipe": row["recipe"], "set": " ".join(row["set"])}
    flat |= _spread("quality", row["quality"])
    flat |= dict(zip(("rank_best", "rank_worst"), row.get("rank") or (None, None), strict=True))
    for data, scores in row["scores"].items():
        for name, value in scores.items():
            flat |= _spread(f"{data}_{name}", value)
    flat["parameters"] = row["parameters"]
    for name, key in (("per_second", "speed"), ("peak_memory", "memory"), ("seconds", "seconds"), ("steps", "steps")):
        flat |= _spread(name, row[key])
    growth = row["growth"] or {}
    flat |= {"decoded_per_second": row["decoding"], "growth_time": growth.get("time"), "growth_memory": growth.get("memory")}
    return flat | {"repeats": len(row["runs"]), "error": row["error"].replace("\n", " ")}


def _spread(name: str, value: Stat | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    bounds = {f"{name}_low": value["low"], f"{name}_high": value["high"]} if value["low"] is not None else {}
    return {name: value["mean"], **bounds}


def _mean(key: str) -> Callable[[Row], float | None]:
    def value(row: Row) -> float | None:
        cell = row[key]
        return cell["mean"] if isinstance(cell, dict) else cell

    return value


def _best_rank(row: Row) -> float | None:
    best: float | None = (row.get("rank") or [None])[0]
    return best


def _growth(what: str, document: dict[str, Any]) -> Column:
    lengths = document["settings"]["lengths"]
    between = f"from {min(lengths):,} to {max(lengths):,} tokens" if lengths else ""
    note = f"{what} of a forward and backward pass of the whole model, n {between}"
    return Column(f"{what} ∝", lambda row: (row["growth"] or {}).get(what), "n^{:.2f}".format, note)
