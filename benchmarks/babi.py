"""Twenty kinds of bAbI stories: a memory network per task, beside the most frequent answer and published figures.

    python benchmarks/babi.py --out OUT [--only 1,2,3] [--seeds 1,2,3] [--at-once 16] [--minutes 9]

Of several seeds, the one with the best validation accuracy is tested. Published figures are those of end-to-end memory networks
on bAbI's own files with 10,000 stories; the stories here are generated and differ in detail. The model is so small that
`--set train.device=cpu` may train it as fast as a GPU does.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from trainings import Outcome, Run, add_options, common_settings, markdown, report, scale_steps, select, sweep

from weft.data.formats import open_pairs
from weft_studies.answering.babi import TASKS

RECIPE = "memory-network"
GOALS = {1: 95, 2: 95, 3: 80, 4: 95, 6: 95, 12: 95, 15: 95}
PUBLISHED = (0, 0.3, 2.1, 0, 0.8, 0.1, 2.0, 0.9, 0.3, 0, 0, 0, 0, 0.2, 0, 51.8, 18.6, 5.3, 2.3, 0)
"""Errors of MemN2N in per cent, by task, as Henaff et al. (2017) give them; their mean is 4.2."""
TESTED = 1000


def data(task: int, split: str, count: int = TESTED) -> str:
    return f"generated:babi?task={task}&count={count}&split={split}"


def floor(task: int, stories: int) -> float:
    """Accuracy of the most frequent answer of training."""
    usual = Counter(answer for _, answer in open_pairs(data(task, "train", stories))).most_common(1)[0][0]
    tested = [answer for _, answer in open_pairs(data(task, "test"))]
    return 100 * tested.count(usual) / len(tested)


def plan(task: int, seed: int, options: argparse.Namespace) -> Run:
    sets = (*common_settings(options.out.absolute()), f"train.seed={seed}", "train.threads=1", *options.set)
    sets = (*sets, scale_steps(RECIPE, sets, options.steps_scale))
    tests = {split: data(task, split) for split in ("valid", "test")}
    train = data(task, "train", options.stories)
    return Run(f"{task}-{seed}", RECIPE, train, sets, tests, valid=data(task, "valid"))


def accuracy(outcome: Outcome, test: str) -> float:
    return outcome.scores.get(test, {}).get("accuracy", float("nan"))


def table(outcomes: Sequence[Outcome], stories: int) -> str:
    """A row per task, of the seed with the best validation accuracy."""
    groups: dict[int, list[Outcome]] = {}
    for each in outcomes:
        if each.scores:
            groups.setdefault(int(each.run.name.partition("-")[0]), []).append(each)
    rows = []
    for task, found in groups.items():
        best = max(found, key=lambda outcome: accuracy(outcome, "valid"))
        seeds = ", ".join(f"{accuracy(each, 'test'):.1f}" for each in found)
        figures = (f"{floor(task, stories):.1f}", f"{accuracy(best, 'test'):.1f}", str(GOALS.get(task, "")), seeds)
        rows.append((f"{task} {TASKS[task][0]}", *figures, f"{100 - PUBLISHED[task - 1]:.1f}", f"{best.seconds:.0f}"))
    return markdown(("task", "most frequent answer", "accuracy, %", "goal", "all seeds", "published", "seconds"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1", help="seeds, separated by commas (default 1)")
    parser.add_argument("--stories", type=int, default=10_000, help="stories to train on (default 10,000)")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    tasks = [int(name) for name in select({str(task): None for task in TASKS}, options.only)]
    runs = [plan(task, int(seed), options) for seed in options.seeds.split(",") for task in tasks]
    outcomes = sweep(runs, options, prepare=0)
    sys.exit(report(options.out, "babi", table(outcomes, options.stories), outcomes))


if __name__ == "__main__":
    main()
