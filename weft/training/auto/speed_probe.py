"""Measures how fast a configuration trains on this machine, by training it for a few seconds."""

import gc
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from weft.config.sections import Config
from weft.data.validation_split import HELD_OUT
from weft.errors import Interrupted
from weft.runs.device_and_precision import choose_device
from weft.training.distributed import World
from weft.training.log import Log, Sink
from weft.training.log_text import Record
from weft.training.prepare_run import prepare_run
from weft.training.training_loop import fit

SHARE, SHORTEST, LONGEST = 0.05, 2.0, 20.0
"""Fraction of a time budget that is spent on measuring the speed, and its minimum and maximum in seconds."""

ENDLESS = 1 << 40

PROBED_PAIRS, PROBED_BATCH = 50, 4
"""Held-out pairs of the measured validation, and the part of a batch that is measured on a CPU, whose updates may be long."""

STEADY_LINES = 3
"""Fewer lines of a log than these show how long a GPU takes to begin, not how fast it trains."""

THREAD_ROWS, THREAD_ROUNDS, MUCH_FASTER = 1024, 8, 1.2
"""Rows and repetitions of a block that is timed with several numbers of threads, and the ratio that counts."""


@dataclass(frozen=True)
class Speed:
    """Seconds until training reaches its full speed, steps per second from then on, and seconds that a validation takes.

    Texts or tokens per second would depend on which batches a short training happens to see.
    """

    startup: float
    steps_a_second: float
    validation: float = 0.0

    def planned(self, seconds: float) -> int:
        """The number of steps that fit into a time, at least 1."""
        return max(1, int((seconds - self.startup) * self.steps_a_second))


class _Records(Sink):
    """Keeps the training lines of a log, and measures how long validation takes after the last of them."""

    def __init__(self) -> None:
        self.lines: list[Record] = []
        self.time, self.validation = 0.0, 0.0

    def record(self, record: Record) -> None:
        if record["event"] == "train":
            self.lines.append(record)
            self.time = time.perf_counter()
        elif record["event"] == "validation":
            self.validation = time.perf_counter() - self.time


def probe(config: Config, seconds: float, run: Path | None = None) -> Speed:
    """Trains for `seconds` in a temporary folder, and validates once if there is validation data, in this process only.

    A validation that takes longer than `seconds` is stopped, and counts as that long.

    `run` is the folder of the run to come. Some of its held-out pairs, if it has them, are validated here.
    """
    # The learning rate does not matter for the speed, but a high one could end in steps that are not finite.
    device = choose_device(config.train.device)
    limits: dict[str, Any] = {
        "train.steps": ENDLESS,
        "train.save_every": ENDLESS,
        "train.validate_every": ENDLESS,
        "train.keep_best": True,
    }
    # As long again for the validation, which is stopped then.
    limits["train.seconds"] = 2 * seconds
    schedule = {"train.schedule": {"kind": "constant", "rate": 1e-6}, "train.budget": "steps"}
    short = config.replaced({**limits, **schedule, "train.log_every": 1 if device.type == "cpu" else 5})
    part = max(1, min(PROBED_BATCH, short.train.batch_tokens // (2 * short.data.max_length))) if device.type == "cpu" else 1
    short = short.replaced({"train.batch_tokens": short.train.batch_tokens // part})
    if short.train.threads:
        torch.set_num_threads(short.train.threads)
    records = _train(short, run, device, seconds)
    if device.type == "cuda" and len(records.lines) < STEADY_LINES:
        records = _train(short, run, device, seconds)  # the time went by while kernels were loaded, once per process
    measured, slow = steps_per_second(records.lines), config.data.validates and device.type == "cpu"
    unknown = seconds if slow else 0.0  # a GPU has spent the time on preparing its first steps
    return Speed(measured.startup, measured.steps_a_second / part, records.validation or unknown)


def _train(config: Config, run: Path | None, device: torch.device, seconds: float) -> _Records:
    """Trains in a temporary folder until the time that the configuration sets is over, and validates for at most `seconds`."""
    records, world = _Records(), World(0, 1, device)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if run is not None and (run / HELD_OUT).exists():
            with (run / HELD_OUT).open("rb") as held:
                (place / HELD_OUT).write_bytes(b"".join(islice(held, PROBED_PAIRS)))
        task, model = prepare_run(config, place, device)
        try:
            options: dict[str, Any] = {"run": place, "world": world, "dim": model.dim, "log": Log([records])}
            fit(model, task, task.config.train, resume=False, validation=seconds, **options)
        except Interrupted:
            raise Interrupted("stopped while the speed of training was measured; nothing was trained") from None
    del model, task
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return records


def fastest_threads(dim: int, rows: int, seconds: float = math.inf) -> int:
    """The number of CPU threads with which a feed-forward block of this width trains fastest: all, half of them, or one.

    On a busy machine, threads that wait for each other may be slower than one. Other numbers than all must be much faster.
    After `seconds`, what has been measured decides.
    """
    usual = torch.get_num_threads()
    block = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
    inputs = torch.randn(min(rows, THREAD_ROWS), dim)
    spent: dict[int, list[float]] = {count: [] for count in sorted({usual, max(1, usual // 2), 1}, reverse=True)}
    try:
        end = time.perf_counter() + seconds
        for measured in range(THREAD_ROUNDS):
            if measured > 1 and time.perf_counter() > end:
                break
            for count, times in spent.items():
                torch.set_num_threads(count)
                began = time.perf_counter()
                block(inputs).sum().backward()
                times.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(usual)
    best = min(spent, key=lambda count: median(spent[count][1:]))
    return best if median(spent[usual][1:]) > MUCH_FASTER * median(spent[best][1:]) else usual


def probe_seconds(budget: float) -> float:
    return min(max(SHARE * budget, SHORTEST), LONGEST)


def steps_per_second(lines: Sequence[Any]) -> Speed:
    """The speed over the second half of a log, or over a single line. A step that was held up does not count."""
    last, late = lines[-1], lines[(len(lines) - 1) // 2 :]
    if len(late) == 1:
        return Speed(0.0, last["step"] / max(last["seconds"], 1e-9))
    spent = [(after["seconds"] - before["seconds"]) / (after["step"] - before["step"]) for before, after in pairwise(late)]
    rate = 1 / max(median(spent), 1e-9)
    return Speed(max(0.0, last["seconds"] - last["step"] / rate), rate)
