"""Every mechanism in one slot of one small model, on four kinds of data, by `weft compare`: the order beside the published one.

    python benchmarks/zoo.py --prepare --out OUT [--agnews FILE.tsv] [--multi30k DIR] [--shakespeare FILE]     no GPU needed
    python benchmarks/zoo.py --out OUT [--parts a,c] [--at-once 16] [--minutes 8] [--measure-minutes 2]       train and measure
    python benchmarks/zoo.py --draw OUT/zoo.json [OTHER/zoo.json] --out REPORTS                              draw, anywhere

a: ListOps of up to 1,000 tokens · b: AG News, byte by byte · c: Multi30k en-de, in the encoder · d: tiny Shakespeare by
characters, the causal ones. The trainings of all parts share one queue: first part a, which takes longest, then what has a
published score, further seeds last. OUT/zoo.json is written anew whenever one ends, and what was stopped goes on with the same
command. Speeds are measured afterwards, of one model at a time. Beside each order stand scores of the Long Range Arena (Tay et
al. 2021), which are of other data and longer trainings: a rank correlation says how far the orders agree.
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

from trainings import markdown, warm
from zoo_parts import PARTS, PUBLISHED, Asked, write_data

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
    """The comparisons of some parts, whose trainings and measurements share one machine.

    until, last: the moments (of time.monotonic) when training and when everything has to end.
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
            with suppress(Stopped):  # the results say how far it is
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
        """One run after the other in one process: first one of each part, which says what it is judged by."""
        processes = Processes(self.out / "logs", until=self.last)
        ended = [(name, run) for name, run in self.queue() if run.number == 0 and complete(run.folder)]
        first = [next(pair for pair in ended if pair[0] == name) for name in {name: None for name, _ in ended}]
        jobs = [self.sweeps[name].job(run) for name, run in [*first, *(pair for pair in ended if pair not in first)]]
        try:
            with suppress(Stopped):
                work("measure", jobs, processes)
        finally:
            self.write()
        print(f"measured {sum(job.load() is not None for job in jobs)} of {len(jobs)}", flush=True)

    def queue(self) -> list[tuple[str, Run]]:
        """All runs in the order in which they are begun. The longest come first, or would end last; of further seeds, last."""
        pairs = [(name, run) for name, sweep in self.sweeps.items() for run in sweep.runs]

        def rank(pair: tuple[str, Run]) -> tuple[int, bool]:
            name, run = pair
            published = _kind(run.entry.label) in PUBLISHED
            return run.number, not published and name != LONGEST if run.number == 0 else not published or name == LONGEST

        return sorted(pairs, key=rank)

    def write(self) -> None:
        """Writes what there is by now, aside first, so that there is never half a file."""
        with self.writing:
            parts = {name: sweep.results() for name, sweep in self.sweeps.items()}
            aside = self.out / f".tmp-{RESULTS}"
            aside.write_text(json.dumps(parts, ensure_ascii=False) + "\n", "utf-8")
            os.replace(aside, self.out / RESULTS)


def prepare(sweeps: Mapping[str, Sweep]) -> None:
    """Tokenises the data of each part into the cache, where it is not there yet."""
    for name, sweep in sweeps.items():
        began = time.monotonic()
        warm(training(sweep.comparison, sweep.comparison.entries[0]).config())
        print(f"{name}: data ready after {time.monotonic() - began:.1f} s", flush=True)


def order(results: dict[str, Any], guesses: str = "", alike: str = "") -> str:
    """One part's entries, the best first, beside what is published; and how much the two orders agree."""
    headline = results["headline"]
    rows = [row for row in results["entries"] if row["quality"]]
    tasks = [*filter(None, [alike]), "average"]
    lines = [(row["label"], _score(row), _per_second(row), _mib(row), _steps(row), *_published(row, tasks)) for row in rows]
    said = [f"By counting alone: {guesses}."] if guesses else []
    if spread := results.get("spread"):
        said.append(f"Standard deviation of one training, from all seeds: {spread:.2g}.")
    both = [row for row in rows if _kind(row["label"]) in PUBLISHED]
    if len(both) > 2:
        sign = 1 if headline["higher_is_better"] else -1
        ours = [sign * row["quality"]["mean"] for row in both]
        found = {task: correlation(ours, [PUBLISHED[_kind(row["label"])][task] for row in both]) for task in tasks}
        agreement = ", ".join(f"{value:+.2f} for the Arena's {task}" for task, value in found.items())
        said.append(f"Rank correlation with what is published: {agreement} ({len(both)} entries).")
    said += [f"{row['label']}: {row['error']}." for row in results["entries"] if not row["quality"]]
    heads = ("entry", headline["title"], f"{results['counts']}/s", "MiB", "steps", *(f"LRA {task}" for task in tasks))
    return markdown(heads, lines) + "".join(f"\n{sentence}\n" for sentence in said)


def correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Spearman's: that of ranks, equal values sharing theirs."""
    try:
        return statistics.correlation(_ranks(ours), _ranks(theirs))
    except statistics.StatisticsError:  # all of one side are equal
        return 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + (1 + sum(other == value for other in values)) / 2 for value in values]


def _kind(label: str) -> str:
    return label.split()[0]


def _published(row: Row, tasks: Sequence[str]) -> list[str]:
    known = PUBLISHED.get(_kind(row["label"]), {})
    return [f"{known[task]:.2f}" if known else "–" for task in tasks]


def _score(row: Row) -> str:
    """The mean; and the scores themselves, where there are several."""
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
    asked = {name: PARTS[name] for name in parts}
    return "\n".join(f"### {part.title}\n\n{order(parts[name], part.guesses, part.alike)}" for name, part in asked.items())


def join(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One part as several calls found it, each with seeds of its own: entries by name, with the runs of all."""
    first, *others = documents
    rows: dict[str, Row] = {row["label"]: row for row in first["entries"]}
    for row in (row for other in others for row in other["entries"]):
        mine = rows.setdefault(row["label"], row)
        if mine is row:
            continue
        for key in ("quality", "speed", "memory", "seconds", "steps"):
            mine[key] = stat(value for each in (mine, row) if each[key] for value in each[key]["values"])
        mine["runs"] += row["runs"]
        mine["error"] = mine["error"] and row["error"]
    spread = pool([row["quality"] for row in rows.values() if row["quality"]])
    sign = -1 if first["headline"]["higher_is_better"] else 1
    entries = sorted(rows.values(), key=lambda row: sign * row["quality"]["mean"] if row["quality"] else math.inf)
    return first | {"entries": entries, "spread": spread}


def pool(stats: Sequence[Stat]) -> float | None:
    """Gives means intervals by the spread between seeds that all entries share, since two seeds of one say little of it.

    Returns the standard deviation of one training; None if no entry has several. It is taken to be the same for all entries.
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
    """Tables of all parts; with `reports`, also what `weft compare` draws, for each."""
    found = [json.loads(file.read_text("utf-8")) for file in files]
    names = {name: None for parts in found for name in parts}
    parts = {name: join([parts[name] for parts in found if name in parts]) for name in names}
    for name, results in parts.items() if reports else ():
        write_report(results, out / name)
    (out / "zoo.md").write_text(show(parts), "utf-8")
    print(show(parts))


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--out", type=Path, default=Path("runs/zoo"), help="folder for data, runs and results")
    found.add_argument("--prepare", action="store_true", help="write the data of the parts, tokenise it, and leave")
    found.add_argument("--agnews", type=Path, help="file of text TAB label, for --prepare")
    found.add_argument("--multi30k", type=Path, help="folder with train and val, .en and .de, for --prepare")
    found.add_argument("--shakespeare", type=Path, help="file of text, for --prepare")
    found.add_argument("--draw", type=Path, nargs="+", metavar="JSON", help="draw what was collected, into --out")
    found.add_argument("--parts", default="a,c,d,b", help="which parts, joined by commas, in the order in which they are begun")
    found.add_argument("--only", default="", help="which mechanisms, joined by commas (default: all of the part)")
    found.add_argument("--at-once", type=int, default=8, help="trainings side by side")
    found.add_argument("--repeat", type=int, default=1, help="seeds")
    found.add_argument("--minutes", type=float, default=0, help="stop after so long; the same command goes on later")
    found.add_argument("--measure-minutes", type=float, default=1.5, help="of --minutes, those kept for measuring speeds")
    found.add_argument("--steps-scale", type=float, default=1.0, help="factor on all steps")
    found.add_argument("--precision", default="bf16", choices=["bf16", "float32"])
    found.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, for all")
    return found


def plan(options: argparse.Namespace) -> dict[str, Sweep]:
    """The comparisons of the parts that are asked for."""
    names = options.parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    only = tuple(filter(None, options.only.split(",")))
    asked = Asked(only, options.steps_scale, options.precision, options.at_once, options.repeat, tuple(options.set))
    comparisons = {name: PARTS[name].comparison(options.out, name, asked) for name in names}
    return {name: Sweep(comparison, partial(_say, name)) for name, comparison in comparisons.items() if comparison.entries}


def _say(part: str, message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {part}: {message}", flush=True)


def main() -> None:
    options = parser().parse_args()
    if options.draw:
        draw(options.draw, options.out, reports=True)
        return
    until = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    sweeps = plan(options)
    if options.prepare:
        write_data(options.out / "data", options.agnews, options.multi30k, options.shakespeare)
    prepare(sweeps)
    if not options.prepare:
        Zoo(options.out, sweeps, options.at_once, until - 60 * options.measure_minutes, until)()
        draw([options.out / RESULTS], options.out, reports=False)


if __name__ == "__main__":
    main()
