"""The results of a comparison: as plain data, as a table for the terminal and as CSV; means, intervals and ranks of seeds."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from rich.markup import escape
from rich.table import Table

from weft.bench.compare.plan import Comparison, ComparisonRun, training
from weft.bench.compare.training_jobs import Job
from weft.bench.machine import about
from weft.runs.run_folder import records
from weft.tasks.base import LOSS, build_task
from weft.training.log_text import NO_SCORES

FORMAT = 1
"""The version of the document. It changes when a key changes its meaning or is removed, not when one is added."""

UNMEASURED = "trained, but the measurement failed: "

Row = dict[str, Any]


def collect(
    comparison: Comparison, runs: Sequence[ComparisonRun], errors: Mapping[str, str], jobs: Mapping[str, Job]
) -> dict[str, Any]:
    """The document of a comparison, best entry first. jobs: the measurements of all trained runs, done or not."""
    results = {run.name: _run(run, jobs.get(run.name), errors.get(run.name, "")) for run in runs}
    rows = [
        _row(entry.label, [results[run.name] for run in runs if run.entry == entry], alone=comparison.at_once > 1)
        | {"recipe": entry.recipe, "set": list(entry.sets)}
        for entry in comparison.entries
    ]
    measured = [run["measured"] for row in rows for run in row["runs"] if run["measured"]]
    facts: Row = measured[0] if measured else _facts(comparison)
    headline = _headline(facts, rows)
    headline["signature"] = facts.get("signatures", {}).get(headline["key"], "")
    for row in rows:
        _add_scores(row, headline["key"], bool(comparison.test))
        for run in row["runs"]:
            del run["measured"]
    sign = -1 if headline["higher_is_better"] else 1
    rows.sort(key=lambda row: (row["quality"] is None, sign * row["quality"]["mean"] if row["quality"] else 0))
    key = headline["key"]
    floors: dict[str, float] = next((run["floors"][key] for run in measured if key in run.get("floors", {})), {})
    rank(rows, higher_is_better=headline["higher_is_better"], floors=floors)
    return {
        "format": FORMAT,
        "about": about(),
        "settings": comparison.document(),
        "headline": headline | {"data": "test" if comparison.test else "valid"},
        "counts": facts["counts"],
        "floors": floors,
        "entries": rows,
    }


NEAR = 1.15
"""A score is near a floor up to this many times as good as the floor."""


def rank(rows: Sequence[Row], *, higher_is_better: bool, floors: Mapping[str, float] | None = None) -> None:
    """Sets `rank` of each row to the best and the worst rank that it may have; None without several seeds or a score.

    A row whose score is hardly better than that of trivial answers, `floors`, is marked (`near_floor`) and has no rank.
    """
    best = (max if higher_is_better else min)(floors.values()) if floors else None
    for row in rows:
        row["rank"], row["near_floor"] = None, False
        if best is not None and row["quality"]:
            mean: float = row["quality"]["mean"]
            row["near_floor"] = mean <= NEAR * best if higher_is_better else mean >= best / NEAR
    scored = [row for row in rows if row["quality"] and not row["near_floor"]]
    places = ranks([row["quality"] for row in scored], higher_is_better=higher_is_better)
    for row, place in zip(scored, places or (), strict=places is not None):
        row["rank"] = list(place)


def _run(run: ComparisonRun, job: Job | None, error: str) -> Row:
    """The results of one training, from its log and its measurements; for a failed training, only the error."""
    lines = records(run.folder) if job else []
    steps = [line for line in lines if line["event"] == "train"]
    if job and (problem := job.error()):
        error = f"{UNMEASURED}{problem}"
    summary = lines[-1] if lines and lines[-1]["event"] == "summary" else {}
    return {
        "seed": run.seed,
        "folder": str(run.folder),
        "error": error,
        "steps": summary.get("step"),
        "stopped": summary.get("stopped"),
        "seconds": steps[-1]["seconds"] if summary else None,  # without the last validation
        "memory": summary.get("peak_memory"),
        "speed": _speed([line["tokens_per_second"] for line in steps]) if summary else None,
        "counts_a_step": _counts_per_step(steps) if summary else None,
        "valid": {name: value for name, value in summary.items() if name not in NO_SCORES},
        "measured": (job.load() if job else None) or {},
    }


def _speed(speeds: Sequence[float]) -> float | None:
    """The median without the first value, which includes warm-up."""
    later = speeds[1:] if len(speeds) > 2 else speeds
    return statistics.median(later) if later else None


def _counts_per_step(lines: Sequence[Row]) -> float:
    """The average over the whole training from its first log line on, so that it is equal for equal batches."""
    pairs = list(pairwise(lines)) or [({"step": 0, "seconds": 0.0}, lines[0])]
    counted = sum(line["tokens_per_second"] * (line["seconds"] - before["seconds"]) for before, line in pairs)
    return counted / max(1, lines[-1]["step"] - pairs[0][0]["step"])


def _row(label: str, runs: list[Row], *, alone: bool) -> Row:
    """An entry with all its runs. Some values are measured on its first run only; if `alone`, so is the speed."""
    measured: Row = next((run for run in runs if "views" in run["measured"]), {"measured": {}})
    first: Row = measured["measured"]
    pace = first.get("steps_a_second")
    good = _trained(runs)
    for run in runs:
        run["test"] = run["measured"].get("test", {})
    return {
        "label": label,
        "error": next((run["error"] for run in runs if run["error"]), ""),
        "parameters": first.get("parameters"),
        "speed": mean_with_interval([pace and pace * measured["counts_a_step"]] if alone else (run["speed"] for run in good)),
        "memory": mean_with_interval(run["memory"] for run in good),
        "seconds": mean_with_interval(run["seconds"] for run in good),
        "steps": mean_with_interval(run["steps"] for run in good),
        "decoding": (first.get("decoding") or {}).get("per_second"),
        "growth": first.get("growth"),
        "views": first.get("views", []),
        "runs": runs,
    }


def _trained(runs: Iterable[Row]) -> list[Row]:
    return [run for run in runs if run["steps"] is not None]


def _facts(comparison: Comparison) -> Row:
    """The headline metric of the task and the unit of its speed, for when nothing is measured yet."""
    task = build_task(training(comparison, comparison.entries[0]).config(), comparison.out)
    return {"headline": asdict(task.headline), "counts": task.info.count_unit}


def _headline(facts: Row, rows: Sequence[Row]) -> Row:
    """The headline metric of the task if all entries have it, else the loss."""
    wanted: Row = facts["headline"]
    known = [run["valid"] | run["test"] for row in rows for run in _trained(row["runs"])]
    return wanted if all(wanted["key"] in each for each in known) else asdict(LOSS)


def _add_scores(row: Row, key: str, tested: bool) -> None:
    """Adds all scores over all runs, and the one that ranks the entries as `quality`."""
    good = _trained(row["runs"])
    row["scores"] = {}
    for data in ("valid", "test"):
        names = dict.fromkeys(name for run in good for name in run[data])
        row["scores"][data] = {name: mean_with_interval(run[data].get(name) for run in good) for name in names}
    row["quality"] = row["scores"]["test" if tested else "valid"].get(key)


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
        return f"{self.form(quality['mean'])}{half}{' (near floor)' if row.get('near_floor') else ''}"


class RankColumn(Column):
    """The ranks that an entry may have."""

    def shown(self, row: Row) -> str:
        best, worst = row.get("rank") or (None, None)
        return NONE if best is None else f"{best}" if best == worst else f"{best}–{worst}"


def columns(document: dict[str, Any]) -> list[Column]:
    """The columns of the table after the entry itself, without columns for which no entry has a value."""
    headline, counts = document["headline"], document["counts"]
    arrow, signature = "↑" if headline["higher_is_better"] else "↓", headline.get("signature")
    data = {"valid": "validation", "test": "test"}[headline["data"]]
    scored = f"on the {data} data" + (f" ({signature})" if signature else "")
    alone = "measured in a short separate training" if document["settings"]["at_once"] > 1 else "median over training"
    where = "the process, with the interpreter" if document["about"]["device"].startswith("CPU") else "tensors on the GPU"
    every = [
        QualityColumn(f"{headline['title']} {arrow}", _mean("quality"), "{:.2f}".format, scored),
        RankColumn(
            "rank", lambda row: (row.get("rank") or [None])[0], WHOLE, "the ranks that the noise between seeds allows, at 5 %"
        ),
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


def column_notes(document: dict[str, Any], shown: Sequence[Column] | None = None) -> list[str]:
    """The meaning of the columns that are shown, or of all, one note each, and notes on the scores."""
    notes = [
        f"{column.heading.strip(' ↑↓')}: {column.note}"
        for column in (columns(document) if shown is None else shown)
        if column.note
    ]
    notes.append(seeds_note(document))
    if floors := document.get("floors"):
        notes.append("floors without a neural network: " + ", ".join(f"{name} {value:.2f}" for name, value in floors.items()))
    if near := [row["label"] for row in document["entries"] if row.get("near_floor")]:
        notes.append(f"hardly better than a floor, so not ranked, and their differences mean nothing: {', '.join(near)}")
    return notes


def seeds_note(document: dict[str, Any]) -> str:
    """A note on the reliability of the quality: its interval over several seeds, or that there is only one."""
    seeds = sorted({len(row["quality"]["values"]) for row in document["entries"] if row["quality"]})
    if not seeds or seeds == [1]:
        return "1 seed per entry: no spread is known, and small differences may be chance (--repeat 3 trains three seeds)"
    counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"± half the 95 % interval of the mean over {counts} seeds, by Student's t"


FRAME, MOST_LABEL = 3, 30
"""Characters between two columns, and those of the longest name of an entry that takes one line."""


def terminal_table(document: dict[str, Any], width: int = 80) -> Table:
    """The table for a terminal of this width, with rich. Columns that do not fit are left to the report."""
    known = columns(document)
    sizes = [max(len(each) for each in (*column.heading.split(), *map(column.shown, document["entries"]))) for column in known]
    label = min(MOST_LABEL, max((len(row["label"]) for row in document["entries"]), default=0))
    room = width - label - FRAME
    shown = [column for place, column in enumerate(known) if sum(sizes[: place + 1]) + FRAME * (place + 1) <= room]
    notes = column_notes(document, shown)
    if len(shown) < len(known):
        notes = [*notes, f"report.html also has: {', '.join(column.heading for column in known[len(shown) :])}"]
    table = Table(title=title(document), title_justify="left", caption=escape("\n".join(notes)), caption_justify="left")
    table.add_column("entry", overflow="fold", width=max(label, len("entry")))
    for column, size in zip(shown, sizes, strict=False):
        table.add_column(escape(column.heading), justify="right", width=size)
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


def _growth(what: str, document: dict[str, Any]) -> Column:
    lengths = document["settings"]["lengths"]
    between = f"from {min(lengths):,} to {max(lengths):,} tokens" if lengths else ""
    note = f"{what} of a forward and backward pass of the whole model, n {between}"
    return Column(f"{what} ∝", lambda row: (row["growth"] or {}).get(what), "n^{:.2f}".format, note)


Stat = dict[str, Any]
"""The trainings of an entry with different seeds: {"mean", "low", "high", "values"}.

low and high bound the 95 % confidence interval of the mean by Student's t, which assumes roughly normal scores; with one
training they are None.
"""

# fmt: off
QUANTILES = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
             2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086]
# fmt: on
"""97.5 % quantiles of Student's t for 1, 2, … degrees of freedom."""


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with `freedom` degrees of freedom."""
    if freedom <= len(QUANTILES):
        return QUANTILES[freedom - 1]
    normal = statistics.NormalDist().inv_cdf(0.975)
    # Beyond the table, the first term of the expansion in 1 / freedom is accurate to the third digit.
    return normal + (normal**3 + normal) / (4 * freedom)


def mean_with_interval(values: Iterable[float | None]) -> Stat | None:
    """Mean and interval of the values that are not None; None if there are none."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    low, high = interval(known) or (None, None)
    return {"mean": statistics.fmean(known), "low": low, "high": high, "values": known}


def pooled_spread(stats: Sequence[Stat]) -> tuple[float, int] | None:
    """The standard deviation of one training and its degrees of freedom; None if no entry has several seeds.

    Two or three trainings say little about the spread of one entry, so the spread is pooled, which assumes that it is equal.
    """
    several = [each["values"] for each in stats if len(each["values"]) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return None
    return math.sqrt(sum(statistics.variance(values) * (len(values) - 1) for values in several) / freedom), freedom


def ranks(stats: Sequence[Stat], *, higher_is_better: bool) -> list[tuple[int, int]] | None:
    """The best and the worst rank that noise allows each entry: behind all that are better, ahead of all that are worse.

    One entry is better than another if the difference of their means exceeds its 95 % interval by Student's t with the pooled
    spread. None if no entry has several seeds.
    """
    pooled = pooled_spread(stats)
    if pooled is None:
        return None
    spread, freedom = pooled

    def better(one: Stat, other: Stat) -> bool:
        least = student(freedom) * spread * math.sqrt(1 / len(one["values"]) + 1 / len(other["values"]))
        difference: float = one["mean"] - other["mean"]
        return (difference if higher_is_better else -difference) > least

    return [
        (1 + sum(better(other, each) for other in stats), len(stats) - sum(better(each, other) for other in stats))
        for each in stats
    ]
