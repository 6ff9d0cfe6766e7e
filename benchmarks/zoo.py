"""Trains every mechanism in one slot of one small model, on four kinds of data, and compares their order with published scores.

    python benchmarks/zoo.py --prepare --out OUT [--agnews FILE.tsv] [--multi30k DIR] [--shakespeare FILE]     no GPU needed
    python benchmarks/zoo.py --out OUT [--parts a,c] [--at-once 16] [--minutes 8] [--measure-minutes 2]       train and measure
    python benchmarks/zoo.py --draw OUT/zoo.json [OTHER/zoo.json] --out REPORTS                              draw, anywhere

a: ListOps of up to 1,000 tokens · b: AG News, byte by byte · c: Multi30k en-de, in the encoder · d: tiny Shakespeare by
characters, causal mechanisms. `weft compare` does the work. The trainings of all parts share one queue: first part a, which
takes longest, then mechanisms with a published score, then further seeds. OUT/zoo.json is rewritten whenever a training ends,
and the same command resumes stopped trainings. Speeds are measured afterwards, one model at a time. The tables also show scores
of the Long Range Arena (Tay et al. 2021), which has other data and longer trainings; a rank correlation compares the orders.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trainings import deadline, markdown, prepare_data
from zoo_parts import PARTS, PUBLISHED, Settings, write_data

from weft.compare.plan import Run, training
from weft.compare.processes import Processes, Stopped
from weft.compare.report import write_report
from weft.compare.results import Row, Stat, stat, student
from weft.compare.sweep import Sweep
from weft.compare.trainings import complete
from weft.compare.worker import work
from weft.runs.folder import RunLock

RESULTS = "zoo.json"
LONGEST = "a"
"""The part whose trainings take longest."""


@dataclass(frozen=True)
class Zoo:
    """The comparisons of several parts, whose trainings and measurements share one machine.

    until, last: the times (of time.monotonic) at which training and everything else must end.
    """

    out: Path
    sweeps: Mapping[str, Sweep]
    at_once: int
    until: float = float("inf")
    last: float = float("inf")
    writing: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> None:
        with RunLock(self.out):
            self.train()
            self.measure()

    def train(self) -> None:
        processes = Processes(self.out / "logs", at_once=self.at_once, until=self.until)

        def one(name: str, run: Run) -> None:
            with suppress(Stopped):  # the results show how far it got
                self.sweeps[name].train(run, processes)
                self.write()

        with ThreadPoolExecutor(self.at_once) as workers:
            try:
                list(workers.map(one, *zip(*self.queue(), strict=True)))
            except BaseException:
                processes.stop()
                raise
            finally:
                self.write()

    def measure(self) -> None:
        """Measures one run after the other in one process, first one of each part, which determines the part's headline."""
        processes = Processes(self.out / "logs", until=self.last)
        done = [(name, run) for name, run in self.queue() if run.number == 0 and complete(run.folder)]
        first = [next(pair for pair in done if pair[0] == name) for name in {name: None for name, _ in done}]
        jobs = [self.sweeps[name].job(run) for name, run in [*first, *(pair for pair in done if pair not in first)]]
        try:
            with suppress(Stopped):
                work("measure", jobs, processes)
        finally:
            self.write()
        print(f"measured {sum(job.load() is not None for job in jobs)} of {len(jobs)}", flush=True)

    def queue(self) -> list[tuple[str, Run]]:
        """All runs in starting order: the longest first, since they would end last; among further seeds, they come last."""
        pairs = [(name, run) for name, sweep in self.sweeps.items() for run in sweep.runs]

        def rank(pair: tuple[str, Run]) -> tuple[int, bool]:
            name, run = pair
            published = _kind(run.entry.label) in PUBLISHED
            return run.number, not published and name != LONGEST if run.number == 0 else not published or name == LONGEST

        return sorted(pairs, key=rank)

    def write(self) -> None:
        """Writes the current results to a temporary file and renames it, so that the file is always complete."""
        with self.writing:
            parts = {name: sweep.results() for name, sweep in self.sweeps.items()}
            temporary = self.out / f".tmp-{RESULTS}"
            temporary.write_text(json.dumps(parts, ensure_ascii=False) + "\n", "utf-8")
            os.replace(temporary, self.out / RESULTS)


def prepare(sweeps: Mapping[str, Sweep]) -> None:
    """Tokenises the data of each part into the cache, unless it is there already."""
    for name, sweep in sweeps.items():
        began = time.monotonic()
        prepare_data(training(sweep.comparison, sweep.comparison.entries[0]).config())
        print(f"{name}: data ready after {time.monotonic() - began:.1f} s", flush=True)


def ranking(results: dict[str, Any], baselines: str = "", arena_task: str = "") -> str:
    """The entries of a part, best first, with published scores; and how far the two orders agree."""
    headline = results["headline"]
    rows = [row for row in results["entries"] if row["quality"]]
    tasks = [*filter(None, [arena_task]), "average"]
    lines = [(row["label"], _score(row), _per_second(row), _mib(row), _steps(row), *_published(row, tasks)) for row in rows]
    notes = [f"Baselines by counting: {baselines}."] if baselines else []
    if spread := results.get("spread"):
        notes.append(f"Standard deviation of one training, from all seeds: {spread:.2g}.")
    both = [row for row in rows if _kind(row["label"]) in PUBLISHED]
    if len(both) > 2:
        sign = 1 if headline["higher_is_better"] else -1
        ours = [sign * row["quality"]["mean"] for row in both]
        correlations = {task: correlation(ours, [PUBLISHED[_kind(row["label"])][task] for row in both]) for task in tasks}
        agreement = ", ".join(f"{value:+.2f} with the Arena's {task}" for task, value in correlations.items())
        notes.append(f"Rank correlation with published scores: {agreement} ({len(both)} entries).")
    notes += [f"{row['label']}: {row['error']}." for row in results["entries"] if not row["quality"]]
    heads = ("entry", headline["title"], f"{results['counts']}/s", "MiB", "steps", *(f"LRA {task}" for task in tasks))
    return markdown(heads, lines) + "".join(f"\n{sentence}\n" for sentence in notes)


def correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values share a rank."""
    try:
        return statistics.correlation(_ranks(ours), _ranks(theirs))
    except statistics.StatisticsError:  # all values of one side are equal
        return 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + (1 + sum(other == value for other in values)) / 2 for value in values]


def _kind(label: str) -> str:
    return label.split()[0]


def _published(row: Row, tasks: Sequence[str]) -> list[str]:
    known = PUBLISHED.get(_kind(row["label"]), {})
    return [f"{known[task]:.2f}" if known else "–" for task in tasks]


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
    return "\n".join(f"### {part.title}\n\n{ranking(results, part.baselines, part.arena_task)}" for part, results in pairs)


def join(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Joins the results of one part from several calls with different seeds: entries by name, with the runs of all calls."""
    first, *others = documents
    rows: dict[str, Row] = {row["label"]: row for row in first["entries"]}
    for row in (row for other in others for row in other["entries"]):
        joined = rows.setdefault(row["label"], row)
        if joined is row:
            continue
        for key in ("quality", "speed", "memory", "seconds", "steps"):
            joined[key] = stat(value for each in (joined, row) if each[key] for value in each[key]["values"])
        joined["runs"] += row["runs"]
        joined["error"] = joined["error"] and row["error"]
    spread = pool([row["quality"] for row in rows.values() if row["quality"]])
    sign = -1 if first["headline"]["higher_is_better"] else 1
    entries = sorted(rows.values(), key=lambda row: sign * row["quality"]["mean"] if row["quality"] else math.inf)
    return first | {"entries": entries, "spread": spread}


def pool(stats: Sequence[Stat]) -> float | None:
    """Adds confidence intervals to means, by a spread between seeds pooled over all entries, since two seeds say little.

    Returns the standard deviation of one training, assumed equal for all entries; None if no entry has several seeds.
    """
    several = [each["values"] for each in stats if len(each["values"]) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return None
    spread = math.sqrt(sum(statistics.variance(values) * (len(values) - 1) for values in several) / freedom)
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


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--out", type=Path, default=Path("runs/zoo"), help="folder for data, runs and results")
    result.add_argument("--prepare", action="store_true", help="only write and tokenise the data of the parts")
    result.add_argument("--agnews", type=Path, help="file of text TAB label, for --prepare")
    result.add_argument("--multi30k", type=Path, help="folder with train and val, .en and .de, for --prepare")
    result.add_argument("--shakespeare", type=Path, help="file of text, for --prepare")
    result.add_argument("--draw", type=Path, nargs="+", metavar="JSON", help="draw collected results into --out")
    result.add_argument("--parts", default="a,c,d,b", help="parts, separated by commas, in starting order")
    result.add_argument("--only", default="", help="mechanisms, separated by commas (default: all of the part)")
    result.add_argument("--at-once", type=int, default=8, help="trainings in parallel")
    result.add_argument("--repeat", type=int, default=1, help="number of seeds")
    result.add_argument("--minutes", type=float, default=0, help="time limit; the same command continues later")
    result.add_argument("--measure-minutes", type=float, default=1.5, help="part of --minutes reserved for measuring speeds")
    result.add_argument("--steps-scale", type=float, default=1.0, help="factor for all step counts")
    result.add_argument("--precision", default="bf16", choices=["bf16", "float32"])
    result.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting for all trainings")
    return result


def plan(options: argparse.Namespace) -> dict[str, Sweep]:
    """The comparisons of the selected parts."""
    names = options.parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"unknown part {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    only = tuple(filter(None, options.only.split(",")))
    settings = Settings(only, options.steps_scale, options.precision, options.at_once, options.repeat, tuple(options.set))
    comparisons = {name: PARTS[name].comparison(options.out, name, settings) for name in names}
    return {name: Sweep(comparison, partial(_say, name)) for name, comparison in comparisons.items() if comparison.entries}


def _say(part: str, message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {part}: {message}", flush=True)


def main() -> None:
    options = parser().parse_args()
    if options.draw:
        draw(options.draw, options.out, reports=True)
        return
    until = deadline(options.minutes)
    sweeps = plan(options)
    if options.prepare:
        write_data(options.out / "data", options.agnews, options.multi30k, options.shakespeare)
    prepare(sweeps)
    if not options.prepare:
        Zoo(options.out, sweeps, options.at_once, until - 60 * options.measure_minutes, until)()
        draw([options.out / RESULTS], options.out, reports=False)


if __name__ == "__main__":
    main()
