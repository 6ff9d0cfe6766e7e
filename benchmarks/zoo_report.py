"""The tables of the zoo: entries beside floors and published scores, from the results of one or several calls."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainings import markdown
from zoo_parts import PARTS, PUBLISHED

from weft.bench.compare.comparison_report import write_report
from weft.bench.compare.results import Row, Stat, mean_with_interval, pooled_spread, rank, student


def ranking(results: dict[str, Any], arena_task: str = "") -> str:
    """The entries and floors of a part, best first, with published scores; and how far the two orders agree."""
    headline = results["headline"]
    sign = 1 if headline["higher_is_better"] else -1
    rows = [row for row in results["entries"] if row["quality"]]
    tasks = [*filter(None, [arena_task]), "average"]
    found = [(row["quality"]["mean"], row["label"], *_cells(row), *_published(row, tasks)) for row in rows]
    floors = results.get("floors", {})
    found += [(value, f"*floor: {name}*", "", f"{value:.2f}", *[""] * (3 + len(tasks))) for name, value in floors.items()]
    lines = [cells for _, *cells in sorted(found, key=lambda line: -sign * line[0])]
    notes = []
    if spread := results.get("spread"):
        notes.append(f"Standard deviation of one training, over all seeds: {spread:.2g}. Ranks are those it allows, at 5 %.")
    both = [row for row in rows if kind_of(row["label"]) in PUBLISHED]
    if len(both) > 2:
        ours = [sign * row["quality"]["mean"] for row in both]
        correlations = {task: correlation(ours, [PUBLISHED[kind_of(row["label"])][task] for row in both]) for task in tasks}
        agreement = ", ".join(f"{value:+.2f} with the Arena's {task}" for task, value in correlations.items())
        notes.append(f"Rank correlation with published scores: {agreement} ({len(both)} entries).")
    notes += [f"{row['label']}: {row['error']}." for row in results["entries"] if not row["quality"]]
    heads = ("entry", "rank", headline["title"], f"{results['counts']}/s", "MiB", "steps", *(f"LRA {task}" for task in tasks))
    return markdown(heads, lines) + "".join(f"\n{sentence}\n" for sentence in notes)


def correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values share a rank."""
    try:
        return statistics.correlation(_ranks(ours), _ranks(theirs))
    except statistics.StatisticsError:  # all values of one side are equal
        return 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + (1 + sum(other == value for other in values)) / 2 for value in values]


def kind_of(label: str) -> str:
    return label.split()[0]


def _published(row: Row, tasks: Sequence[str]) -> tuple[str, ...]:
    known = PUBLISHED.get(kind_of(row["label"]), {})
    return tuple(f"{known[task]:.2f}" if known else "–" for task in tasks)


def _cells(row: Row) -> list[str]:
    return [_rank(row), _score(row), _per_second(row), _mib(row), _steps(row)]


def _rank(row: Row) -> str:
    """The range of ranks, such as 1–4."""
    return "–".join(dict.fromkeys(map(str, row.get("rank") or ["–"])))


def _score(row: Row) -> str:
    """The mean, and the single scores if there are several."""
    quality = row["quality"]
    several = len(quality["values"]) > 1
    return f"{quality['mean']:.2f}" + (f" ({', '.join(f'{value:.2f}' for value in quality['values'])})" if several else "")


def _per_second(row: Row) -> str:
    return f"{row['speed']['mean']:,.0f}" if row["speed"] else "–"


def _mib(row: Row) -> str:
    return f"{row['memory']['mean'] / 2**20:,.0f}" if row["memory"] else "–"


def _steps(row: Row) -> str:
    return f"{row['steps']['mean']:,.0f}" if row["steps"] else "–"


def show(parts: Mapping[str, Any]) -> str:
    """Markdown of all parts."""
    pairs = [(PARTS[name], results) for name, results in parts.items()]
    return "\n".join(f"### {part.title}\n\n{ranking(results, part.arena_task)}" for part, results in pairs)


def join(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Joins the results of one part from several calls with different seeds: entries by name, with the runs of all calls."""
    first, *others = documents
    rows: dict[str, Row] = {row["label"]: row for row in first["entries"]}
    for row in (row for other in others for row in other["entries"]):
        joined = rows.setdefault(row["label"], row)
        if joined is row:
            continue
        for key in ("quality", "speed", "memory", "seconds", "steps"):
            joined[key] = mean_with_interval(value for each in (joined, row) if each[key] for value in each[key]["values"])
        joined["runs"] += row["runs"]
        joined["error"] = joined["error"] and row["error"]
    spread = pool([row["quality"] for row in rows.values() if row["quality"]])
    sign = -1 if first["headline"]["higher_is_better"] else 1
    entries = sorted(rows.values(), key=lambda row: sign * row["quality"]["mean"] if row["quality"] else math.inf)
    rank(entries, higher_is_better=first["headline"]["higher_is_better"])
    return first | {"entries": entries, "spread": spread}


def pool(stats: Sequence[Stat]) -> float | None:
    """Adds confidence intervals to means, by a spread between seeds pooled over all entries, since two seeds say little.

    Returns the standard deviation of one training, assumed equal for all entries; None if no entry has several seeds.
    """
    found = pooled_spread(stats)
    if found is None:
        return None
    spread, freedom = found
    for each in stats:
        half = student(freedom) * spread / math.sqrt(len(each["values"]))
        each.update(low=each["mean"] - half, high=each["mean"] + half)
    return spread


def draw(files: Sequence[Path], out: Path, *, reports: bool) -> None:
    """Writes the tables of all parts; with `reports`, also the report of `weft compare` for each."""
    documents = [json.loads(file.read_text("utf-8")) for file in files]
    names = {name: None for parts in documents for name in parts}
    parts = {name: join([parts[name] for parts in documents if name in parts]) for name in names}
    for name, results in parts.items() if reports else ():
        write_report(results, out / name)
    (out / "zoo.md").write_text(show(parts), "utf-8")
    print(show(parts))
