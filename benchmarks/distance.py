"""Copying and recall over distance: RNNs, convolutions and Transformers on lengths of training and on longer ones.

    python benchmarks/distance.py --out OUT [--tasks copy,recall] [--only rnn,heads-4] [--seeds 2] [--minutes 20]

copy: up to 20 letters as they are · distant_copy: a few letters, and a gap of up to 40 tokens that they have to survive ·
recall: up to 19 keys with a digit after each, and the digit of one of them. The systems and their sizes are those of
`agreement.py`; `--only none,sinusoid,learned,shaw,alibi,rotary` compares positions. A test of each length has 300 texts that
training never has; the figure is the share of tokens at their place.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

import agreement
from agreement import COMMON, POSITIONS, RATE, STACKS
from trainings import Outcome, Run, add_options, common_settings, markdown, report, scale_steps, select, sweep

TASKS = {"copy": (20, (10, 20, 30)), "distant_copy": (40, (20, 40, 80)), "recall": (40, (10, 40, 54))}
"""Generator → the longest text of training, and the lengths of the tests."""
NAMES = ("rnn-fixed", "rnn", "cnn", "heads-4", "heads-4-sinusoids")
SYSTEMS = agreement.SYSTEMS | {
    name: (f"Transformer, 4 heads, positions: {title}", "transformer-tiny", (*STACKS, "model.heads=4", *sets))
    for name, (title, sets) in POSITIONS.items()
}
"""Those of `agreement.py`, and `heads-4` with six kinds of positions (`--only none,learned`; `rotary` is `heads-4`)."""
EACH = 300


def plan(task: str, name: str, seed: int, options: argparse.Namespace) -> Run:
    _, recipe, own = SYSTEMS[name]
    longest, lengths = TASKS[task]
    sets = (*COMMON, *RATE, "train.steps=2500", *own, f"train.seed={seed}", *common_settings(options.out))
    steps = scale_steps(recipe, sets, options.steps_scale)
    train = f"generated:{task}?count=20000&longest={longest}"
    tests = {str(each): f"generated:{task}?count={EACH}&seed=2&split=test&shortest={each}&longest={each}" for each in lengths}
    return Run(f"{task}-{name}@{seed}", recipe, train, (*sets, steps, *options.set), tests, beam=0)


def table(task: str, outcomes: Sequence[Outcome]) -> str:
    """A row for each system, with the accuracy of each seed by length."""
    rows = []
    for name in (*NAMES, *POSITIONS):
        some = [each for each in outcomes if each.run.name.startswith(f"{task}-{name}@") and each.scores]
        if some:
            figures = (", ".join(f"{each.scores[str(length)]['accuracy']:.1f}" for each in some) for length in TASKS[task][1])
            seconds = statistics.mean(each.seconds for each in some)
            rows.append([f"`{name}`", SYSTEMS[name][0], *figures, f"{seconds:.0f}"])
    return f"{task}\n\n{markdown(['system', '', *map(str, TASKS[task][1]), 'seconds'], rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="tasks, separated by commas")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each system")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    names = select(SYSTEMS, options.only or ",".join(NAMES))
    tasks = select(TASKS, options.tasks)
    seeds = range(1, options.seeds + 1)
    outcomes = sweep([plan(task, name, seed, options) for seed in seeds for task in tasks for name in names], options)
    sys.exit(report(options.out, "distance", "\n".join(table(task, outcomes) for task in tasks), outcomes))


if __name__ == "__main__":
    main()
