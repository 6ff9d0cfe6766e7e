"""How much of a time budget real processes use: `weft train auto --time` and `weft compare --budget`, from start to exit.

    python benchmarks/time_budgets.py train.tsv --times 60,100,240 --out OUT [--compare valid.tsv]

Prints the seconds and the share of each budget, the load of the machine before and after, and the words of the verdict. A
budget is kept if at least 85 % of it is used and it is exceeded by at most 5 %. `weft compare` gives each training the
whole budget, without the last validation, which is part of its measurements; each training is one line.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

LEAST, MOST = 0.85, 1.05
RECIPES = ("transformer-tiny", "rnn-luong")


def weft(*words: str) -> tuple[float, str]:
    """The seconds that a command takes, from the start of its process to its end, and what it prints."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "weft", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return time.monotonic() - began, done.stdout + done.stderr


def line(name: str, seconds: float, budget: float, before: float, words: str) -> str:
    share = seconds / budget
    kept = "kept" if LEAST <= share <= MOST else "NOT KEPT"
    load = f"load {before:.1f} → {os.getloadavg()[0]:.1f}"
    return f"{name:<28}{seconds:7.1f} of {budget:g} s {share:7.1%} {kept:<9} {load}  {words}"


def trainings(data: str, times: Sequence[int], out: Path) -> None:
    """Trains `auto` within each time."""
    for budget in times:
        before = os.getloadavg()[0]
        seconds, printed = weft("train", "auto", "--data", data, "--out", str(out / f"auto-{budget}"), "--time", f"{budget}s")
        (out / f"auto-{budget}.txt").write_text(printed, "utf-8")
        words = " ".join(text for text in printed.splitlines() if text.startswith(("time:", "verdict:")))
        print(line(f"auto --time {budget}s", seconds, budget, before, words), flush=True)


def comparisons(data: str, valid: str, budget: int, out: Path) -> None:
    """Compares two recipes with a budget for each training."""
    before = os.getloadavg()[0]
    folder = out / f"compare-{budget}"
    options = ["--data", data, "--valid", valid, "--budget", f"{budget}s", "--out", str(folder)]
    seconds, printed = weft("compare", *RECIPES, *options)
    (out / f"compare-{budget}.txt").write_text(printed, "utf-8")
    for log in sorted(folder.rglob("log.jsonl")):
        steps = [record for record in map(json.loads, log.read_text("utf-8").splitlines()) if record["event"] == "train"]
        name = f"compare {log.parent.relative_to(folder)}"
        print(line(name, steps[-1]["seconds"], budget, before, f"the whole comparison {seconds:.1f} s"), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--times", default="60,100,240")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compare", metavar="VALID", help="validation data: compare recipes, do not train auto")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    times = [int(each) for each in args.times.split(",")]
    if args.compare:
        for budget in times:
            comparisons(args.data, args.compare, budget, args.out)
    else:
        trainings(args.data, times, args.out)


if __name__ == "__main__":
    main()
