"""Neural Turing Machine, LSTM and Transformer on sequences of bit vectors, also longer ones than those of training.

    python benchmarks/ntm.py --out OUT [--tasks copy,repeat,recall] [--only ntm] [--seeds 1,2,3] [--at-once 9] [--minutes 9]

Prints the wrong bits in per cent, at the lengths of training and beyond. Guessing has 50 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainings import (
    Outcome,
    Run,
    add_options,
    common_settings,
    markdown,
    report,
    scale_steps,
    score_cell,
    select,
    sweep,
)

RECIPE = "ntm-copy"
TASKS: dict[str, tuple[int, dict[str, str]]] = {
    "copy": (8, {"1–20": "", **{str(n): f"&shortest={n}&longest={n}" for n in (20, 40, 60)}}),
    "repeat": (8, {"1–10": "", "20": "&shortest=20&longest=20"}),
    "recall": (6, {"2–6": "", "12": "&shortest=12&longest=12"}),
}
"""Task → bits of a vector, and the tests: name → options of the data."""

SYSTEMS: dict[str, dict[str, Any]] = {
    "ntm": {"kind": "ntm", "dim": 100, "slots": 128, "slot_width": 20},
    "lstm": {"kind": "rnn", "cell": "lstm", "dim": 256, "layers": 3, "bidirectional": False, "dropout": 0.0},
    "transformer": {"kind": "transformer", "dim": 128, "heads": 4, "feedforward": 256, "layers": 3, "dropout": 0.0},
}


def data(task: str, count: int, own: str = "") -> str:
    return f"generated:bits_{task}?count={count}{own}"


def plan(task: str, system: str, seed: int, options: argparse.Namespace) -> Run:
    width, tests = TASKS[task]
    # Batches of few sizes are replayed as CUDA graphs; step by step, Python would be the slowest part.
    own = (f"train.seed={seed}", f"task.width={width}", "train.rounded=true", "train.threads=1")
    sets = (*common_settings(options.out.absolute()), *own, f"model.encoder={json.dumps(SYSTEMS[system])}", *options.set)
    sets = (*sets, scale_steps(RECIPE, sets, options.steps_scale))
    asked = {name: data(task, options.tested, f"&split=test{lengths}") for name, lengths in tests.items()}
    valid = data(task, options.tested, "&split=valid")
    return Run(f"{task}-{system}-{seed}", RECIPE, data(task, options.sequences), sets, asked, valid=valid)


def table(outcomes: Sequence[Outcome], tests: Mapping[str, Iterable[str]], shown: Mapping[str, str]) -> str:
    """A table per task and score, with a row per system and seed. tests: of each task · shown: the score → its heading."""
    tables = []
    for task, names in tests.items():
        for metric, heading in shown.items():
            found = [each for each in outcomes if each.run.name.startswith(f"{task}-")]
            rows = [
                (each.run.name, *(score_cell(each, test, metric) for test in names), f"{each.seconds:.0f}") for each in found
            ]
            tables += [markdown((f"{task}: {heading}", *names, "seconds"), rows)] if rows else []
    return "\n".join(tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="copy", help=f"of {', '.join(TASKS)} (default copy)")
    parser.add_argument("--seeds", default="1,2,3", help="seeds, separated by commas (default 1,2,3)")
    parser.add_argument("--sequences", type=int, default=200_000, help="sequences to train on (default 200,000)")
    parser.add_argument("--tested", type=int, default=100, help="sequences of each test (default 100)")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    names, tasks = select(SYSTEMS, options.only), select(TASKS, options.tasks)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    runs = [plan(task, system, seed, options) for task in tasks for system in names for seed in seeds]
    outcomes, tests = sweep(runs, options), {task: TASKS[task][1] for task in tasks}
    sys.exit(report(options.out, "ntm", table(outcomes, tests, {"bit_errors": "wrong bits, %"}), outcomes))


if __name__ == "__main__":
    main()
