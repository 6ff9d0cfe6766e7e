"""What a comparison found, as plain data: everything that tables, charts and pages are made of, drawn now or later.

A `Stat` is over the trainings of an entry that differ in their seed: {"mean", "low", "high", "values"}. low and high bound the
95 % interval of the mean by Student's t, which asks that scores be about normal over seeds; with one training they are None.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from weft.bench.machine import about
from weft.compare.plan import Comparison, Run, training
from weft.compare.trainings import records
from weft.compare.worker import Job
from weft.registry import build
from weft.tasks.base import Setting, Task

FORMAT = 1
"""Raised when a key changes its meaning or goes away; new keys do not raise it."""

UNMEASURED = "trained, but could not be measured: "

Stat = dict[str, Any]
Row = dict[str, Any]

# fmt: off
QUANTILES = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
             2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086]
# fmt: on
"""Of Student's t at 97.5 %, for 1, 2, … degrees of freedom."""


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean by Student's t; None of fewer than two values."""
    if len(values) < 2:
        return None
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with so many degrees of freedom."""
    if freedom <= len(QUANTILES):
        return QUANTILES[freedom - 1]
    normal = statistics.NormalDist().inv_cdf(0.975)
    # Beyond the table the first term of the expansion in 1 / freedom is right to the third digit.
    return normal + (normal**3 + normal) / (4 * freedom)


def stat(values: Iterable[float | None]) -> Stat | None:
    """Mean and interval of what is there; None where nothing is."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    low, high = interval(known) or (None, None)
    return {"mean": statistics.fmean(known), "low": low, "high": high, "values": known}


def collect(comparison: Comparison, runs: Sequence[Run], errors: Mapping[str, str], jobs: Mapping[str, Job]) -> dict[str, Any]:
    """The document of a comparison, the best entry first. jobs: of all runs that are trained, measured already or not."""
    found = {run.name: _run(run, jobs.get(run.name), errors.get(run.name, "")) for run in runs}
    rows = [
        _row(entry.label, [found[run.name] for run in runs if run.entry == entry], alone=comparison.at_once > 1)
        | {"recipe": entry.recipe, "set": list(entry.sets)}
        for entry in comparison.entries
    ]
    measured = [run["measured"] for row in rows for run in row["runs"] if run["measured"]]
    facts: Row = measured[0] if measured else _facts(comparison)
    headline = _headline(facts, rows)
    for row in rows:
        _judge(row, headline["key"], bool(comparison.test))
        for run in row["runs"]:
            del run["measured"]
    sign = -1 if headline["higher_is_better"] else 1
    rows.sort(key=lambda row: (row["quality"] is None, sign * row["quality"]["mean"] if row["quality"] else 0))
    return {
        "format": FORMAT,
        "about": about(),
        "settings": comparison.document(),
        "headline": headline | {"data": "test" if comparison.test else "valid"},
        "counts": facts["counts"],
        "entries": rows,
    }


def _run(run: Run, job: Job | None, error: str) -> Row:
    """What is known of one training: its log, and what was measured of it; of one that failed, the error alone."""
    lines = records(run.folder) if job else []
    learned = [line for line in lines if line["event"] == "train"]
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
        "seconds": learned[-1]["seconds"] if summary else None,  # without the last validation
        "memory": summary.get("peak_memory"),
        "speed": _speed([line["tokens_per_second"] for line in learned]) if summary else None,
        "counts_a_step": _counts_a_step(learned) if summary else None,
        "valid": {name: value for name, value in summary.items() if name not in plain},
        "measured": (job.found() if job else None) or {},
    }


def _speed(speeds: Sequence[float]) -> float | None:
    """The median, without the first: while it was measured kernels were chosen and caches filled."""
    later = speeds[1:] if len(speeds) > 2 else speeds
    return statistics.median(later) if later else None


def _counts_a_step(lines: Sequence[Row]) -> float:
    """Over the whole training, so that it is the same for all that read the same batches; without the time before the first."""
    pairs = list(pairwise(lines)) or [({"step": 0, "seconds": 0.0}, lines[0])]
    counted = sum(line["tokens_per_second"] * (line["seconds"] - before["seconds"]) for before, line in pairs)
    return counted / max(1, lines[-1]["step"] - pairs[0][0]["step"])


def _row(label: str, runs: list[Row], *, alone: bool) -> Row:
    """The entry with all its runs. More was measured of the first that could be; if `alone`, the speed too."""
    looked: Row = next((run for run in runs if "views" in run["measured"]), {"measured": {}})
    first: Row = looked["measured"]
    good = _trained(runs)
    for run in runs:
        run["test"] = run["measured"].get("test", {})
    return {
        "label": label,
        "error": next((run["error"] for run in runs if run["error"]), ""),
        "parameters": first.get("parameters"),
        "speed": stat([_alone(looked)] if alone else (run["speed"] for run in good)),
        "memory": stat(run["memory"] for run in good),
        "seconds": stat(run["seconds"] for run in good),
        "steps": stat(run["steps"] for run in good),
        "decoding": (first.get("decoding") or {}).get("per_second"),
        "growth": first.get("growth"),
        "views": first.get("views", []),
        "runs": runs,
    }


def _alone(run: Row) -> float | None:
    """Counts a second of a run by its pace with no other beside it."""
    pace = run["measured"].get("steps_a_second")
    return None if pace is None else pace * run["counts_a_step"]


def _trained(runs: Iterable[Row]) -> list[Row]:
    return [run for run in runs if run["steps"] is not None]


def _facts(comparison: Comparison) -> Row:
    """What the task is judged by, and what its speed counts, as long as nothing was measured."""
    config = training(comparison, comparison.entries[0]).config()
    task: Task = build("weft.tasks:TASKS", config.task, Setting(config, comparison.out), where="task")
    return {"headline": asdict(task.headline), "counts": task.counts}


def _headline(facts: Row, rows: Sequence[Row]) -> Row:
    """The task's own score where all entries have it; the loss elsewhere."""
    wanted: Row = facts["headline"]
    known = [run["valid"] | run["test"] for row in rows for run in _trained(row["runs"])]
    return (
        wanted if all(wanted["key"] in each for each in known) else {"key": "loss", "title": "loss", "higher_is_better": False}
    )


def _judge(row: Row, key: str, tested: bool) -> None:
    """Adds the scores, each over all runs, and the one that counts: `quality`."""
    good = _trained(row["runs"])
    row["scores"] = {}
    for data in ("valid", "test"):
        names = dict.fromkeys(name for run in good for name in run[data])
        row["scores"][data] = {name: stat(run[data].get(name) for run in good) for name in names}
    row["quality"] = row["scores"]["test" if tested else "valid"].get(key)
