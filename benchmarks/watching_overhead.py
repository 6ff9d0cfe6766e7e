"""The time that the files and trackers of a run take, as a share of its training.

    python benchmarks/watching_overhead.py runs/overhead --time 5m [--recipe transformer-small] [--trackers trackio]

It trains on generated sequences and times every call of every sink of the log, besides what tasks need to decode samples.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import weft
from weft.tasks.corpus_task import CorpusTask
from weft.training import train_run
from weft.training.log import Log

SPENT: dict[str, float] = defaultdict(float)


def timed(owner: Any, name: str, title: str) -> None:
    """Adds the time of each call of a method to `SPENT`."""
    inner = getattr(owner, name)

    def outer(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*arguments, **options)
        finally:
            SPENT[title] += time.perf_counter() - began

    setattr(owner, name, outer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--time", default="5m")
    parser.add_argument("--recipe", default="transformer-small")
    parser.add_argument("--trackers", nargs="*", default=[])
    options = parser.parse_args()
    opened = train_run.open_log

    def open_log(*arguments: Any, **settings: Any) -> Log:
        log = opened(*arguments, **settings)
        for sink in log.sinks:
            for method in ("begin", "record", "samples", "step", "close"):
                timed(sink, method, type(sink).__name__)
        return log

    train_run.open_log = open_log
    timed(CorpusTask, "samples", "samples that evaluate has not decoded")
    data = [
        f"generated:reverse?count={count}&longest=30&split={split}" for count, split in ((100_000, "train"), (500, "valid"))
    ]
    sets = {"train.trackers": options.trackers} if options.trackers else {}
    result = weft.train(options.recipe, data=data[0], valid=data[1], out=options.out, time=options.time, set=sets)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.recipe}: {result.update} steps, {result.seconds:.0f} s"
    )
    for title, seconds in sorted(SPENT.items(), key=lambda item: -item[1]):
        print(f"{title}: {seconds:.3f} s, {seconds / result.seconds:.3%} of the training")


if __name__ == "__main__":
    main()
