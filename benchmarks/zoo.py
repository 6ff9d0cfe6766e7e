"""Trains every mechanism in one slot of one small model, on four kinds of data, and compares their order with published scores.

    python benchmarks/zoo.py --prepare --out OUT [--agnews FILE.tsv] [--multi30k DIR] [--shakespeare FILE]     no GPU needed
    python benchmarks/zoo.py --out OUT [--parts a,c] [--at-once 16] [--minutes 8] [--measure-minutes 2]       train and measure
    python benchmarks/zoo.py --draw OUT/zoo.json [OTHER/zoo.json] --out REPORTS                              draw, anywhere

a: ListOps of up to 1,000 tokens · b: AG News by bytes · c: Multi30k en-de, in the encoder · d: tiny Shakespeare by
characters, causal mechanisms. `weft compare` does the work. The trainings of all parts share one queue: first part a, which
takes longest, then mechanisms with a published score, then further seeds. OUT/zoo.json is rewritten whenever a training ends,
and the same command resumes stopped trainings. Speeds are measured afterwards, one model at a time. The tables also show scores
of the Long Range Arena (Tay et al. 2021), which has other data and longer trainings; a rank correlation compares the orders.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from trainings import deadline, prepare_data
from zoo_parts import PARTS, PUBLISHED, Settings, write_data
from zoo_report import draw, kind_of

from weft.bench.compare.plan import ComparisonRun, training
from weft.bench.compare.sweep import Sweep
from weft.bench.compare.training_jobs import Processes, Stopped, work
from weft.runs.run_folder import RunLock, complete

RESULTS, FLOORS = "zoo.json", "floors.json"
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

        def one(name: str, run: ComparisonRun) -> None:
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

    def queue(self) -> list[tuple[str, ComparisonRun]]:
        """All runs in starting order: the longest first, since they would end last; among further seeds, they come last."""
        pairs = [(name, run) for name, sweep in self.sweeps.items() for run in sweep.runs]

        def rank(pair: tuple[str, ComparisonRun]) -> tuple[int, bool]:
            name, run = pair
            published = kind_of(run.entry.label) in PUBLISHED
            return run.number, not published and name != LONGEST if run.number == 0 else not published or name == LONGEST

        return sorted(pairs, key=rank)

    def write(self) -> None:
        """Writes the current results to a temporary file and renames it, so that the file is always complete."""
        with self.writing:
            floors = read_floors(self.out)
            parts = {name: sweep.results() | {"floors": floors.get(name, {})} for name, sweep in self.sweeps.items()}
            temporary = self.out / f".tmp-{RESULTS}"
            temporary.write_text(json.dumps(parts, ensure_ascii=False) + "\n", "utf-8")
            os.replace(temporary, self.out / RESULTS)


def prepare(sweeps: Mapping[str, Sweep]) -> None:
    """Tokenises the data of each part into the cache, unless it is there already."""
    for name, sweep in sweeps.items():
        began = time.monotonic()
        prepare_data(training(sweep.comparison, sweep.comparison.entries[0]).config())
        print(f"{name}: data ready after {time.monotonic() - began:.1f} s", flush=True)


def write_floors(out: Path, names: Iterable[str]) -> None:
    """Computes the floors of parts from their data."""
    floors = read_floors(out) | {name: PARTS[name].floors(*PARTS[name].paths(out)) for name in names}
    (out / "data" / FLOORS).write_text(json.dumps(floors, indent=1, ensure_ascii=False) + "\n", "utf-8")


def read_floors(out: Path) -> dict[str, dict[str, float]]:
    """Part → description → score; empty if they were not prepared."""
    file = out / "data" / FLOORS
    floors: dict[str, dict[str, float]] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return floors


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
    if options.prepare:
        write_floors(options.out, sweeps)
    else:
        Zoo(options.out, sweeps, options.at_once, until - 60 * options.measure_minutes, until)()
        draw([options.out / RESULTS], options.out, reports=False)


if __name__ == "__main__":
    main()
