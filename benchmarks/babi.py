"""Twenty kinds of bAbI stories: a memory network per task, beside the most frequent answer and published figures.

    python benchmarks/babi.py --out OUT [--tasks 1 2 3] [--seeds 1 2 3] [--paper FILE] [--set KEY=VALUE]

Of several seeds, the one with the best validation accuracy is tested. FILE has the number of a task, a tab and an accuracy in
per cent on each line. Published figures are for bAbI's own files; the stories here are generated and differ in detail.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import weft
from weft.data.babi import TASKS
from weft.data.formats import open_pairs
from weft.translator import load_trained

RECIPE = "memory-network"


def data(task: int, split: str, count: int) -> str:
    return f"generated:babi?task={task}&count={count}&split={split}"


def floor(task: int, stories: int) -> float:
    """Accuracy of the most frequent answer of training."""
    usual = Counter(answer for _, answer in open_pairs(data(task, "train", stories))).most_common(1)[0][0]
    tested = [answer for _, answer in open_pairs(data(task, "test", 1000))]
    return 100 * tested.count(usual) / len(tested)


def measure(task: int, options: argparse.Namespace) -> dict[str, float]:
    """Trains with each seed, and tests the best by validation. Finished runs are not repeated."""
    best = {"valid": -1.0, "test": 0.0, "seed": 0.0}
    for seed in options.seeds:
        run = options.out / f"task{task}-{seed}"
        if not (run / "done.json").exists():
            sets = {"train.seed": seed, "train.tensorboard": False}
            wishes = [f"{key}={value}" for key, value in sets.items()] + options.set
            source, valid = data(task, "train", options.stories), data(task, "valid", 1000)
            result = weft.train(RECIPE, out=run, data=source, valid=valid, set=wishes)
            (run / "done.json").write_text(json.dumps(result.scores))
        trained = load_trained(run)
        valid_score = trained.score(data(task, "valid", 1000))["accuracy"]
        if valid_score > best["valid"]:
            test = trained.score(data(task, "test", 1000))["accuracy"]
            best = {"valid": valid_score, "test": test, "seed": float(seed)}
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and results")
    parser.add_argument("--tasks", type=int, nargs="+", default=list(TASKS), help="numbers of tasks; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds; default: 1")
    parser.add_argument("--stories", type=int, default=10_000, help="stories to train on; default: 10,000")
    parser.add_argument("--paper", type=Path, help="file with published accuracies: task, tab, accuracy")
    parser.add_argument("--set", nargs="+", default=[], help="settings written over the recipe", metavar="KEY=VALUE")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    paper = dict(line.split("\t") for line in options.paper.read_text("utf-8").splitlines()) if options.paper else {}
    print("| task | most frequent answer | accuracy | paper | seed |\n|---|---:|---:|---:|---:|", flush=True)
    for task in options.tasks:
        found, lowest = measure(task, options), floor(task, options.stories)
        name, figures = f"{task} {TASKS[task][0]}", (lowest, found["test"])
        row = (name, *(f"{figure:.1f}" for figure in figures), paper.get(str(task), "–"), f"{found['seed']:.0f}")
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
