"""The results of a comparison as plain data, from which tables, charts and pages are made."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from weft.bench.compare.budget import Comparison, ComparisonRun, training
from weft.bench.compare.seed_statistics import mean_with_interval, ranks
from weft.bench.compare.worker import Job
from weft.bench.machine import about
from weft.runs.open_run import build_task
from weft.runs.run_folder import records
from weft.tasks.base import LOSS

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
        _judge(row, headline["key"], bool(comparison.test))
        for run in row["runs"]:
            del run["measured"]
    sign = -1 if headline["higher_is_better"] else 1
    rows.sort(key=lambda row: (row["quality"] is None, sign * row["quality"]["mean"] if row["quality"] else 0))
    rank(rows, higher_is_better=headline["higher_is_better"])
    return {
        "format": FORMAT,
        "about": about(),
        "settings": comparison.document(),
        "headline": headline | {"data": "test" if comparison.test else "valid"},
        "counts": facts["counts"],
        "entries": rows,
    }


def rank(rows: Sequence[Row], *, higher_is_better: bool) -> None:
    """Sets `rank` of each row to the best and the worst rank that it may have; None without several seeds or a score."""
    scored = [row for row in rows if row["quality"]]
    for row in rows:
        row["rank"] = None
    found = ranks([row["quality"] for row in scored], higher_is_better=higher_is_better)
    for row, place in zip(scored, found or (), strict=found is not None):
        row["rank"] = list(place)


def _run(run: ComparisonRun, job: Job | None, error: str) -> Row:
    """The results of one training, from its log and its measurements; for a failed training, only the error."""
    lines = records(run.folder) if job else []
    steps = [line for line in lines if line["event"] == "train"]
    if job and (problem := job.error()):
        error = f"{UNMEASURED}{problem}"
    summary = lines[-1] if lines and lines[-1]["event"] == "summary" else {}
    plain = {"event", "step", "stopped", "weights", "run", "seconds", "peak_memory"}
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
        "valid": {name: value for name, value in summary.items() if name not in plain},
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
    return {"headline": asdict(task.headline), "counts": task.counts}


def _headline(facts: Row, rows: Sequence[Row]) -> Row:
    """The headline metric of the task if all entries have it, else the loss."""
    wanted: Row = facts["headline"]
    known = [run["valid"] | run["test"] for row in rows for run in _trained(row["runs"])]
    return wanted if all(wanted["key"] in each for each in known) else asdict(LOSS)


def _judge(row: Row, key: str, tested: bool) -> None:
    """Adds all scores over all runs, and the one that ranks the entries as `quality`."""
    good = _trained(row["runs"])
    row["scores"] = {}
    for data in ("valid", "test"):
        names = dict.fromkeys(name for run in good for name in run[data])
        row["scores"][data] = {name: mean_with_interval(run[data].get(name) for run in good) for name in names}
    row["quality"] = row["scores"]["test" if tested else "valid"].get(key)
