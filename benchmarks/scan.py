"""SCAN (Lake & Baroni 2018): exact match of action sequences, on commands like those of training and on a new verb.

    python benchmarks/scan.py DIR --out OUT [--steps-scale 0.1]

DIR holds tasks_train_SPLIT.txt and tasks_test_SPLIT.txt, possibly as .gz, with lines `IN: … OUT: …`. `simple` is a random
split. In `addprim_jump`, training has `jump` alone, and the test has combinations that training has with other verbs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainings import Outcome, Run, add_options, common_settings, markdown, report, scale_steps, score_cell, select, sweep

from weft.data.text_lines import read_lines

RECIPE = "rnn-scan"
SPLITS = {
    "simple": "a random fifth of the commands",
    "addprim_jump": "`jump` in combinations, seen only alone",
}


def convert(folder: Path, part: str, split: str, out: Path) -> str:
    """Writes the commands of a split as `command TAB actions`; returns the path."""
    plain = folder / f"tasks_{part}_{split}.txt"
    lines = read_lines(str(plain if plain.exists() else f"{plain}.gz"))
    file = out / f"{split}.{part}.tsv"
    with file.open("w", encoding="utf-8") as output:
        for line in lines:
            command, actions = line.removeprefix("IN:").split("OUT:")
            output.write(f"{command.strip()}\t{actions.strip()}\n")
    return str(file)


def plan(folder: Path, split: str, out: Path, scale: float, sets: list[str]) -> Run:
    tests = {"test": convert(folder, "test", split, out)}
    changes = (*common_settings(out), *sets, scale_steps(RECIPE, sets, scale))
    return Run(split, RECIPE, convert(folder, "train", split, out), changes, tests, beam=1)


def table(outcomes: list[Outcome]) -> str:
    headings = ("split", "tested on", "parameters", "exact match, %", "seconds")
    rows = [
        (
            f"`{each.run.name}`",
            SPLITS[each.run.name],
            f"{each.parameters:,}",
            score_cell(each, "test", "exact"),
            f"{each.seconds:.0f}",
        )
        for each in outcomes
    ]
    return markdown(headings, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of SCAN")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = select(SPLITS, options.only)
    runs = [plan(options.folder, name, options.out, options.steps_scale, options.set) for name in names]
    outcomes = sweep(runs, options, prepare=0)
    sys.exit(report(options.out, "scan", table(outcomes), outcomes))


if __name__ == "__main__":
    main()
