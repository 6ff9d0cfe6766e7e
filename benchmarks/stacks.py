"""Stacks and queues beside a Neural Turing Machine, an LSTM and a Transformer, on languages that need them.

Trained to length 20, tested at 100.

    python benchmarks/stacks.py --out OUT [--tasks anbn,dyck2] [--only stack,lstm] [--seeds 1,2,3] [--at-once 2]

Prints the wrong bits and the completely right sequences, both in per cent. The weights are those with the lowest loss at the
lengths 21 to 40. The floor writes at each position what is most frequent there in training: the k-th vector of the answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import numpy as np
from ntm import SYSTEMS as MACHINES
from ntm import data, table
from trainings import Run, add_options, common_settings, report, scale_steps, select, sweep

from weft.data.formats import open_pairs
from weft_studies.bits.data import read_target

RECIPE = "stack-reverse"
TASKS = {"anbn": 2, "anb2n": 2, "dyck2": 4, "reverse": 8}
"""Task → bits of a vector."""

TESTS = {"1–20": "", "40": "&shortest=40&longest=40", "100": "&shortest=100&longest=100"}

SYSTEMS: dict[str, dict[str, Any]] = {
    "stack_rnn": {"kind": "stack_rnn", "dim": 64, "stacks": 2, "cells": 256, "cell_width": 8, "controller": "lstm"},
    "stack": {"kind": "neural_stack", "dim": 64, "stored_width": 16},
    "queue": {"kind": "neural_stack", "form": "queue", "dim": 64, "stored_width": 16},
    "ntm": MACHINES["ntm"],
    "lstm": {"kind": "rnn", "cell": "lstm", "dim": 128, "layers": 2, "bidirectional": False, "dropout": 0.0},
    "transformer": {"kind": "transformer", "dim": 128, "heads": 4, "feedforward": 256, "layers": 3, "dropout": 0.0},
}
RATES = {"stack_rnn": 5e-3, "ntm": 3e-3, "lstm": 3e-3, "transformer": 1e-3}
"""The learning rate of a system that has another than the recipe."""


def plan(task: str, system: str, seed: int, options: argparse.Namespace) -> Run:
    own = [f"train.seed={seed}", f"task.width={TASKS[task]}", "train.threads=1"]
    own += [f"train.schedule.rate={RATES[system]}"] if system in RATES else []
    sets = (*common_settings(options.out.absolute()), *own, f"model.encoder={json.dumps(SYSTEMS[system])}", *options.set)
    sets = (*sets, scale_steps(RECIPE, sets, options.steps_scale))
    asked = {name: data(task, options.tested, f"&split=test{lengths}") for name, lengths in TESTS.items()}
    valid = data(task, options.tested, "&split=valid&shortest=21&longest=40")
    return Run(f"{task}-{system}-{seed}", RECIPE, data(task, options.sequences), sets, asked, valid=valid)


def floor(train: Iterable[str], test: Iterable[str], width: int) -> tuple[float, float]:
    """Wrong bits and right sequences, in per cent, of the most frequent bits at each place of an answer.

    Beyond the last place of training, the bits of that place are repeated.
    """
    places = zip_longest(*(read_target(text, width) for text in train))
    usual = [np.mean([bits for bits in place if bits is not None], 0) > 0.5 for place in places]
    wrong, bits, exact, count = 0, 0, 0, 0
    for text in test:
        target = read_target(text, width).astype(bool)
        missed = target != np.array([usual[min(place, len(usual) - 1)] for place in range(len(target))])
        wrong, bits, exact = wrong + missed[:, :-1].sum(), bits + missed[:, :-1].size, exact + (not missed.any())
        count += 1
    return 100 * wrong / bits, 100 * exact / count


def floors(tasks: Iterable[str], options: argparse.Namespace) -> str:
    lines = []
    for task in tasks:
        train = [target for _, target in open_pairs(data(task, 1000))]
        for name, lengths in TESTS.items():
            test = [target for _, target in open_pairs(data(task, options.tested, f"&split=test{lengths}"))]
            wrong, exact = floor(train, test, TASKS[task])
            lines.append(f"{task} {name}: wrong bits {wrong:.2f}, exact {exact:.2f}")
    return "Floors, %: " + " · ".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="", help=f"of {', '.join(TASKS)} (default all)")
    parser.add_argument("--seeds", default="1,2,3", help="seeds, separated by commas (default 1,2,3)")
    parser.add_argument("--sequences", type=int, default=20_000, help="sequences to train on (default 20,000)")
    parser.add_argument("--tested", type=int, default=100, help="sequences of each test (default 100)")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    names, tasks = select(SYSTEMS, options.only), select(TASKS, options.tasks)
    runs = [plan(task, system, int(seed), options) for seed in options.seeds.split(",") for task in tasks for system in names]
    outcomes = sweep(runs, options)
    shown = {"bit_errors": "wrong bits, %", "exact": "right sequences, %"}
    sys.exit(
        report(options.out, "stacks", table(outcomes, dict.fromkeys(tasks, TESTS), shown) + floors(tasks, options), outcomes)
    )


if __name__ == "__main__":
    main()
