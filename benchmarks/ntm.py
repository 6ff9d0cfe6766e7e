"""Neural Turing Machine, LSTM and Transformer on sequences of bit vectors, also longer ones than those of training.

    python benchmarks/ntm.py --out OUT [--task copy] [--systems ntm lstm transformer] [--seeds 1 2 3] [--set KEY=VALUE]

Prints the wrong bits in per cent, at the lengths of training and beyond. Guessing has 50 %.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import weft
from weft.translator import load_trained

RECIPE = "ntm-copy"
TASKS: dict[str, tuple[int, str, dict[str, str]]] = {
    "copy": (8, "", {"1–20": "", **{str(n): f"&shortest={n}&longest={n}" for n in (20, 40, 60)}}),
    "repeat": (8, "", {"1–10": "", "20": "&shortest=20&longest=20"}),
    "recall": (6, "", {"2–6": "", "12": "&shortest=12&longest=12"}),
}
"""Task → bits of a vector, options of its training data, and the tests: name → options."""

SYSTEMS: dict[str, dict[str, Any]] = {
    "ntm": {"kind": "ntm", "dim": 100, "slots": 128, "slot_width": 20},
    "lstm": {"kind": "rnn", "cell": "lstm", "dim": 256, "layers": 3, "bidirectional": False, "dropout": 0.0},
    "transformer": {"kind": "transformer", "dim": 128, "heads": 4, "feedforward": 256, "layers": 3, "dropout": 0.0},
}


def train(system: str, seed: int, options: argparse.Namespace) -> Path:
    width, own, _ = TASKS[options.task]
    run: Path = options.out / f"{options.task}-{system}-{seed}"
    if not (run / "done").exists():
        wishes = [f"train.seed={seed}", f"task.width={width}", "train.tensorboard=false", *options.set]
        weft.train(
            RECIPE,
            out=run,
            data=f"generated:bits_{options.task}?count={options.sequences}{own}",
            valid=f"generated:bits_{options.task}?count=200&split=valid{own}",
            set=[*wishes, f"model.encoder={SYSTEMS[system]}"],
        )
        (run / "done").touch()
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for runs")
    parser.add_argument("--task", choices=list(TASKS), default="copy", help="default: copy")
    parser.add_argument("--systems", choices=list(SYSTEMS), nargs="+", default=list(SYSTEMS), help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds; default: 1 2 3")
    parser.add_argument("--sequences", type=int, default=200_000, help="sequences to train on; default: 200,000")
    parser.add_argument("--set", nargs="+", default=[], help="settings written over the recipe", metavar="KEY=VALUE")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tests = TASKS[options.task][2]
    print(f"| system | seed | {' | '.join(tests)} |\n|---|---:|{'---:|' * len(tests)}", flush=True)
    for system in options.systems:
        for seed in options.seeds:
            trained = load_trained(train(system, seed, options))
            data = [f"generated:bits_{options.task}?count=100&split=test{own}" for own in tests.values()]
            wrong = [f"{trained.score(each)['bit_errors']:.2f}" for each in data]
            print(f"| {system} | {seed} | {' | '.join(wrong)} |", flush=True)


if __name__ == "__main__":
    main()
