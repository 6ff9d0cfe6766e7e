"""The time that the files and trackers of a run take, as a share of its training.

    python benchmarks/watching_overhead.py runs/overhead --time 5m [--recipe transformer-small] [--trackers trackio]

It trains on generated sequences and adds up the CPU time of every call of every sink of the log, and that of decoding samples.
Processes that a tracker starts are not counted.

    python benchmarks/watching_overhead.py RUNS --page 60

It opens `weft watch` on a folder of runs, asks it every two seconds what an open page asks, and reports the CPU time of the
server, which is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import torch

import weft
from weft.tasks.corpus_task import CorpusTask
from weft.training import train_in_folder
from weft.training.log import Log

SPENT: dict[str, float] = defaultdict(float)


def timed(owner: Any, name: str, title: str) -> None:
    """Adds the CPU time of each call of a method to `SPENT`."""
    inner = getattr(owner, name)

    def outer(*arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        try:
            return inner(*arguments, **options)
        finally:
            SPENT[title] += time.process_time() - began

    setattr(owner, name, outer)


def time_sinks() -> None:
    """Times what the sinks of every log do that a training opens from now on, and decoding samples."""
    opened = train_in_folder.open_log

    def open_log(*arguments: Any, **settings: Any) -> Log:
        log = opened(*arguments, **settings)
        for sink in log.sinks:
            for method in ("record", "samples", "step"):
                timed(sink, method, type(sink).__name__)
            for method in ("begin", "close"):
                timed(sink, method, f"{type(sink).__name__}, once at the beginning and the end")
        return log

    train_in_folder.open_log = open_log
    timed(CorpusTask, "samples", "samples that evaluate has not decoded")


def page_cost(runs: Path, seconds: float) -> None:
    """Prints the share of a core that the server of an open page takes."""
    command = [sys.executable, "-m", "weft", "watch", str(runs), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
        names = [each["name"] for each in ask(address, "/api/runs")["runs"]][:3]
        before, began = cpu_time(process.pid), time.monotonic()
        while time.monotonic() - began < seconds:
            ask(address, "/api/runs")
            for name in names:
                ask(address, f"/api/curves?run={quote(name)}")
            time.sleep(2)
        share = (cpu_time(process.pid) - before) / (time.monotonic() - began)
        print(f"weft watch with {len(names)} runs shown: {share:.2%} of a core")
    finally:
        process.kill()
        process.wait()


def ask(address: str, path: str) -> Any:
    with urlopen(f"{address}{path}") as answer:
        return json.load(answer)


def cpu_time(pid: int) -> float:
    """The CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", type=float, default=0.0, help="seconds to watch the runs in OUT, instead of training")
    parser.add_argument("out", type=Path)
    parser.add_argument("--time", default="5m")
    parser.add_argument("--recipe", default="transformer-small")
    parser.add_argument("--trackers", nargs="*", default=[])
    options = parser.parse_args()
    if options.page:
        page_cost(options.out, options.page)
        return
    time_sinks()
    data = [
        f"generated:reverse?count={count}&longest=30&split={split}" for count, split in ((100_000, "train"), (500, "valid"))
    ]
    sets = {"train.trackers": options.trackers} if options.trackers else {}
    began = time.process_time()
    result = weft.train(options.recipe, data=data[0], valid=data[1], out=options.out, time=options.time, set=sets)
    spent = time.process_time() - began
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    print(f"{machine}, {options.recipe}: {result.update} steps, {result.seconds:.0f} s, {spent:.0f} s of CPU time")
    for title, seconds in sorted(SPENT.items(), key=lambda item: -item[1]):
        print(f"{title}: {seconds:.3f} s, {seconds / spent:.3%} of the CPU time")


if __name__ == "__main__":
    main()
