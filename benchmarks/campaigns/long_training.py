"""Hours of training with interruptions: flat memory, steady speed, and the losses of an uninterrupted run.

    python benchmarks/campaigns/long_training.py OUT --hours 1.5 [--resumes 10] [--device cpu] [--seed 1] [--set KEY=VALUE …]
    python benchmarks/campaigns/long_training.py OUT --control          # trains the stretch again, without interruptions
    python benchmarks/campaigns/long_training.py OUT --report

Trains a small model to reverse letters, with dropout, as `weft train` in a process of its own. At --resumes random moments that
process gets SIGTERM or is killed (`kill -9`), and `weft train --resume` goes on. Another call adds hours. Four times a minute,
OUT/measured.jsonl gets the memory, the CPU time and the step. Speed is steps per second of CPU time, which other programs on
the machine change little. --control trains from the same seed in OUT/control up to --share of the steps, then stops. --report
fits lines to memory and speed, and compares the losses of both runs, which must be equal to the last digit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from processes_from_outside import held
from slopes import Slope, pooled, slope

LOGGED = 50
"""Steps between two logged losses."""

SETTINGS = (
    "data.tokenizer=words",
    "data.vocabulary=100",
    "model.dim=64",
    "model.feedforward=128",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "model.dropout=0.1",
    "train.steps=10000000",
    "train.batch_tokens=768",
    "train.precision=float32",
    "train.schedule={kind: constant, rate: 1e-3, warmup: 200}",
    "train.validate_every=1000",
    "train.validate_sentences=50",
    "train.save_every=500",
    f"train.log_every={LOGGED}",
    "train.keep_last=2",
    "train.tensorboard=false",
    "decode.search={kind: beam, width: 1}",
)
DATA = "generated:reverse?count=20000&longest=12"
EVERY = 15.0
"""Seconds between two measurements."""

SETTLED = 30.0
"""CPU seconds of a process before its memory counts for the slope: allocators and caches fill up first."""

STARTED = 15.0
"""CPU seconds of a process before its speed counts: it imports packages first."""


def command(out: Path, options: argparse.Namespace) -> list[str]:
    """Starts a training, or goes on with the one that is there."""
    weft = [sys.executable, "-m", "weft", "train"]
    if (out / "checkpoints").exists() and any((out / "checkpoints").iterdir()):
        return [*weft, "--resume", str(out)]
    sets = [*SETTINGS, f"train.device={options.device}", f"train.seed={options.seed}", *options.set]
    data = ["--data", DATA, "--valid", f"{DATA}&split=valid&count=100".replace("count=20000&", "")]
    return [*weft, "transformer-tiny", "--out", str(out), *data, *(word for each in sets for word in ("--set", each))]


@contextmanager
def training(out: Path, options: argparse.Namespace) -> Iterator[subprocess.Popen[bytes]]:
    """A training as a process, which ends with the block."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{out}.output.txt", "ab") as log:
        started = subprocess.Popen(command(out, options), stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
        try:
            yield started
        finally:
            started.kill()
            started.wait()


def losses(out: Path) -> dict[int, float]:
    """The training loss at each logged step."""
    lines = (out / "log.jsonl").read_text("utf-8").splitlines() if (out / "log.jsonl").exists() else []
    found = {}
    for line in lines:
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue  # the process was killed while it wrote
        if event["event"] == "train":
            found[event["step"]] = event["loss"]
    return found


def last_step(out: Path) -> int:
    return max(losses(out), default=0)


def measure(out: Path, process: subprocess.Popen[bytes], life: int, began: float) -> dict[str, Any]:
    """The memory and the progress of the training."""
    return {
        "life": life,
        "hours": (time.monotonic() - began) / 3600,
        "step": last_step(out / "run"),
        **asdict(held({process.pid: "training"})),
    }


def measured(out: Path) -> list[dict[str, Any]]:
    file = out / "measured.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def run(out: Path, options: argparse.Namespace) -> None:
    """Trains for the given hours, interrupted at random moments."""
    before = measured(out)
    life, earlier = max((each["life"] for each in before), default=0), max((each["hours"] for each in before), default=0.0)
    draw, began, seconds = random.Random(options.seed + life), time.monotonic(), 3600 * options.hours
    moments = sorted(draw.uniform(0, seconds) for _ in range(options.resumes))
    out.mkdir(parents=True, exist_ok=True)
    for moment in [*moments, seconds]:
        life += 1
        with training(out / "run", options) as process, open(out / "measured.jsonl", "a", encoding="utf-8") as file:
            while (left := began + moment - time.monotonic()) > 0 and process.poll() is None:
                time.sleep(min(options.every, left))
                line = measure(out, process, life, began - 3600 * earlier)
                file.write(json.dumps(line) + "\n")
                file.flush()
            if process.poll() is not None:
                raise SystemExit(f"the training ended with status {process.returncode}; see {out}/run.output.txt")
            if moment == seconds or draw.random() < 0.5:
                process.send_signal(signal.SIGTERM)
                process.wait(600)


def control(out: Path, options: argparse.Namespace) -> None:
    """Trains the first stretch once more in one process."""
    goal = int(options.share * last_step(out / "run"))
    with training(out / "control", options) as process:
        while last_step(out / "control") < goal and process.poll() is None:
            time.sleep(1)


def lives(lines: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The measurements of each process."""
    found: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["life"], []).append(line)
    return [*found.values()]


def memory_slope(lines: list[dict[str, Any]], settled: float) -> Slope | None:
    """MiB per hour, fitted to each process once it has settled."""
    some = [[each for each in life if each["seconds"] >= settled] for life in lives(lines)]
    found = [slope([each["hours"] for each in life], [each["rss"] for each in life]) for life in some]
    return pooled([each for each in found if each])


def speeds(lines: list[dict[str, Any]], started: float, least: float = 5.0) -> list[tuple[float, float]]:
    """Hours and steps per CPU second, over at least this many CPU seconds each."""
    found = []
    for life in lives(lines):
        begin = None
        for each in (each for each in life if each["seconds"] >= started):
            if begin is None or each["step"] < begin["step"]:
                begin = each
            elif each["seconds"] - begin["seconds"] >= least and each["step"] > begin["step"]:
                found.append((each["hours"], (each["step"] - begin["step"]) / (each["seconds"] - begin["seconds"])))
                begin = each
    return found


def compare(out: Path) -> tuple[int, int]:
    """How many losses of the same steps both runs have logged, and how many of them differ.

    A logged loss is the mean of the steps since the one before. The first after a resumption has fewer steps and is left out.
    """
    one, other, text = losses(out / "run"), losses(out / "control"), (out / "run.output.txt").read_text("utf-8")
    cut = {-(-int(step) // LOGGED) * LOGGED for step in re.findall(r"resuming after step (\d+)", text) if int(step) % LOGGED}
    both = (one.keys() & other.keys()) - cut
    return len(both), sum(one[step] != other[step] for step in both)


def report(out: Path, settled: float = SETTLED, started: float = STARTED) -> str:
    """Hours, resumptions, memory, speed, and the comparison with the uninterrupted run."""
    lines = measured(out)
    hours, resumed, found = max(each["hours"] for each in lines), len(lives(lines)) - 1, speeds(lines, started)
    seconds = sum(max(each["seconds"] for each in life) for life in lives(lines))
    text = f"{hours:.2f} hours, {seconds / 60:.1f} minutes of CPU time, {resumed} resumptions, {last_step(out / 'run')} steps\n"
    text += f"memory, MiB: {lines[-1]['rss']:.0f} in the end; slope {memory_slope(lines, settled) or 'too short'}\n"
    if found:
        mean = sum(speed for _, speed in found) / len(found)
        fitted = slope([at for at, _ in found], [100 * speed / mean for _, speed in found])
        text += f"speed: {mean:.2f} steps per CPU second; slope in percent of it {fitted or 'too short'}\n"
    count, differing = compare(out)
    stretch = max(losses(out / "control"), default=0)
    lives_there = sum(life[0]["step"] <= stretch for life in lives(lines)) - 1
    text += f"uninterrupted up to step {stretch} ({lives_there} resumptions there): {count} losses compared, {differing} differ"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the run and of what is measured")
    parser.add_argument("--hours", type=float, default=1.0, help="hours to add")
    parser.add_argument("--resumes", type=int, default=10, help="interruptions in these hours")
    parser.add_argument("--control", action="store_true", help="only train the first stretch again, uninterrupted")
    parser.add_argument("--share", type=float, default=0.4, help="the share of the steps that --control trains")
    parser.add_argument("--report", action="store_true", help="only report what was measured")
    parser.add_argument("--every", type=float, default=EVERY, help="seconds between two measurements")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings written over the usual ones")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the training as well
    if options.control:
        control(options.out, options)
    elif not options.report:
        run(options.out, options)
    print(report(options.out))
    sys.exit(bool(compare(options.out)[1]))


if __name__ == "__main__":
    main()
