"""The results of a comparison as a table: for a terminal, and as CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from weft.compare.results import Row, Stat

NONE = "–"
MIB = 2**20


@dataclass(frozen=True)
class Column:
    """heading · value: the number of a row, by which it can be sorted · shown: how people read it · note: what it is."""

    heading: str
    value: Callable[[Row], float | None]
    shown: Callable[[Row], str]
    note: str = ""


def columns(document: dict[str, Any]) -> list[Column]:
    """What a table of these results has beside the entry; columns that no entry has a value for are left out."""
    headline, counts = document["headline"], document["counts"]
    arrow = "↑" if headline["higher_is_better"] else "↓"
    data = {"valid": "validation", "test": "test"}[headline["data"]]
    alone = "trained for a moment with no other beside" if document["settings"]["at_once"] > 1 else "median over training"
    found = [
        Column(f"{headline['title']} {arrow}", _mean("quality"), _with_interval, f"on the {data} data"),
        _column("parameters", "parameters", lambda value: f"{value / 1e6:.2f}M" if value >= 1e5 else f"{value:,.0f}"),
        _column(f"{counts}/s", "speed", _thousands, f"in training, {alone}"),
        _column("decoded/s", "decoding", lambda value: f"{value:,.1f}", "sentences or texts, one model at a time"),
        _column("memory MiB", "memory", lambda value: f"{value / MIB:,.0f}", _memory_note(document)),
        _growth("time", document),
        _growth("memory", document),
        _column("steps", "steps", _thousands),
        _column("seconds", "seconds", lambda value: f"{value:,.0f}", "of training"),
    ]
    return [column for column in found if any(column.value(row) is not None for row in document["entries"])]


def terminal_table(document: dict[str, Any]) -> Table:
    """For rich."""
    found = columns(document)
    notes = [f"{column.heading.strip(' ↑↓')}: {column.note}" for column in found if column.note]
    if document["settings"]["repeat"] > 1:
        notes.append(f"± half the 95 % interval of the mean over {document['settings']['repeat']} seeds, by Student's t")
    table = Table(title=title(document), title_justify="left", caption=escape("\n".join(notes)), caption_justify="left")
    table.add_column("entry", overflow="fold")
    for column in found:
        table.add_column(escape(column.heading), justify="right")
    for row in document["entries"]:
        table.add_row(escape(row["label"]), *(column.shown(row) for column in found))
    return table


def title(document: dict[str, Any]) -> str:
    about, settings = document["about"], document["settings"]
    return f"{len(document['entries'])} entries · budget: {settings['budget']} each · {about['device']}"


def write_csv(document: dict[str, Any]) -> str:
    """One line an entry, plain numbers: bytes, seconds, counts a second."""
    lines = [_flat(row) for row in document["entries"]]
    names = list(dict.fromkeys(name for line in lines for name in line))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def failures(document: dict[str, Any]) -> list[str]:
    """Which trainings failed, and why."""
    return [
        f"{row['label']}, seed {run['seed']}: {run['error']}"
        for row in document["entries"]
        for run in row["runs"]
        if run["error"]
    ]


def _flat(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {"entry": row["label"], "recipe": row["recipe"], "set": " ".join(row["set"])}
    flat |= _spread("quality", row["quality"])
    for data, scores in row["scores"].items():
        for name, found in scores.items():
            flat |= _spread(f"{data}_{name}", found)
    flat["parameters"] = row["parameters"]
    for name, key in (("per_second", "speed"), ("peak_memory", "memory"), ("seconds", "seconds"), ("steps", "steps")):
        flat |= _spread(name, row[key])
    growth = row["growth"] or {}
    flat |= {"decoded_per_second": row["decoding"], "growth_time": growth.get("time"), "growth_memory": growth.get("memory")}
    return flat | {"repeats": len(row["runs"]), "error": row["error"].replace("\n", " ")}


def _spread(name: str, found: Stat | None) -> dict[str, Any]:
    if found is None:
        return {name: None}
    bounds = {f"{name}_low": found["low"], f"{name}_high": found["high"]} if found["low"] is not None else {}
    return {name: found["mean"], **bounds}


def _mean(key: str) -> Callable[[Row], float | None]:
    def value(row: Row) -> float | None:
        found = row[key]
        return found["mean"] if isinstance(found, dict) else found

    return value


def _column(heading: str, key: str, form: Callable[[float], str], note: str = "") -> Column:
    value = _mean(key)

    def shown(row: Row) -> str:
        found = value(row)
        return NONE if found is None else form(found)

    return Column(heading, value, shown, note)


def _with_interval(row: Row) -> str:
    found = row["quality"]
    if found is None:
        return "failed" if row["error"] else NONE
    half = f" ± {(found['high'] - found['low']) / 2:.2f}" if found["low"] is not None else ""
    return f"{found['mean']:.2f}{half}"


def _growth(what: str, document: dict[str, Any]) -> Column:
    lengths = document["settings"]["lengths"]
    between = f"from {min(lengths):,} to {max(lengths):,} tokens" if lengths else ""

    def value(row: Row) -> float | None:
        return (row["growth"] or {}).get(what)

    def shown(row: Row) -> str:
        found = value(row)
        return NONE if found is None else f"n^{found:.2f}"

    return Column(f"{what} ∝", value, shown, f"{what} of forward and backward of the whole model, n {between}")


def _memory_note(document: dict[str, Any]) -> str:
    where = "the process, interpreter included" if document["about"]["device"].startswith("CPU") else "tensors on the GPU"
    return f"peak in training, of {where}"


def _thousands(value: float) -> str:
    return f"{value:,.0f}"
