"""SCAN (Lake & Baroni 2018): exact match of action sequences, on commands like those of training and on a new verb.

    python benchmarks/scan.py DIR --out OUT [--steps-scale 0.1]

DIR holds tasks_train_SPLIT.txt and tasks_test_SPLIT.txt, also as .gz, with lines `IN: … OUT: …`. simple is a random split;
in addprim_jump `jump` is seen alone, and tested in combinations that other verbs were seen in.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainings import Outcome, Run, Sweep, about, add_options, chosen, common, markdown, shown, write

from weft.config.sections import load_config
from weft.data.formats import read_lines

RECIPE = "rnn-scan"
SPLITS = {
    "simple": "a random fifth of the commands",
    "addprim_jump": "`jump` in combinations, seen only alone",
}


def convert(folder: Path, part: str, split: str, out: Path) -> str:
    """Writes the commands of a split as `command TAB actions`, and says where."""
    plain = folder / f"tasks_{part}_{split}.txt"
    lines = read_lines(str(plain if plain.exists() else f"{plain}.gz"))
    file = out / f"{split}.{part}.tsv"
    with file.open("w", encoding="utf-8") as written:
        for line in lines:
            command, actions = line.removeprefix("IN:").split("OUT:")
            written.write(f"{command.strip()}\t{actions.strip()}\n")
    return str(file)


def plan(folder: Path, split: str, out: Path, scale: float, sets: list[str]) -> Run:
    steps = round(load_config(RECIPE, sets).train.steps * scale)
    tests = {"test": convert(folder, "test", split, out)}
    changes = (*common(out), *sets, f"train.steps={max(1, steps)}")
    return Run(split, RECIPE, convert(folder, "train", split, out), changes, tests, beam=1)


def table(outcomes: list[Outcome]) -> str:
    headings = ("split", "tested on", "parameters", "exact match, %", "seconds")
    rows = [
        (
            f"`{each.run.name}`",
            SPLITS[each.run.name],
            f"{each.parameters:,}",
            shown(each, "test", "exact"),
            f"{each.seconds:.0f}",
        )
        for each in outcomes
    ]
    return f"{about()}\n\n{markdown(headings, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of SCAN")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = chosen(SPLITS, options.only)
    runs = [plan(options.folder, name, options.out, options.steps_scale, options.set) for name in names]
    outcomes = Sweep(options.out, at_once=options.at_once, minutes=options.minutes)(runs)
    write(options.out, "scan", table(outcomes), outcomes)
    sys.exit(any(each.error for each in outcomes))


if __name__ == "__main__":
    main()
