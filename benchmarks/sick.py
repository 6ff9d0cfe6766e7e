"""Entailment and relatedness of the pairs of SICK: attention between the texts beside siamese vectors, floors and controls.

    python benchmarks/sick.py DIR --out OUT [--seeds 1,2,3] [--at-once 1] [--only esim,siamese] [--hold-out 500]

DIR has train.tsv and dev.tsv with two texts, their relatedness from 1 to 5, and their label on each line (Marelli et al. 2014).
The floors are the most frequent label, a linear model of how many words the texts share, and one of the words that only one of
them has as well. The controls are trained and tested on texts whose partner is that of another pair (`shuffled`), and on texts
whose first text is hidden (`hidden`).

`--hold-out N` trains on all but N random pairs of train.tsv and scores these instead of dev.tsv: settings were chosen there.
For the time on one core of a CPU: `--at-once 1 --set train.device=cpu --set train.threads=1`.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import torch
from floors import regress
from torch import Tensor
from trainings import Outcome, Run, add_options, common_settings, markdown, report, scale_steps, score_cell, select, sweep

from weft.tasks.pairs.metrics import Pearson

RECIPE = "pairs-attention"
LABEL, NUMBER = "4", "3"
"""The columns of the label and of the relatedness."""

NUMERIC = ("task.output=number", "train.best_by=pearson")
RNN = "model.encoder={kind: rnn, cell: lstm, dim: 128, dropout: 0.3}"
SIAMESE = "task.comparison={kind: siamese, pooling: mean_max}"
JOINED = (
    "task.comparison=joined",
    "model.encoder={kind: transformer, dim: 128, heads: 4, layers: 2, feedforward: 256, dropout: 0.3}",
)
DECOMPOSABLE = "task.comparison={kind: decomposable, hidden: 200}"
SYSTEMS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "esim": ("", LABEL, ()),
    "esim-rnn": ("", LABEL, (RNN,)),
    "decomposable": ("", LABEL, (DECOMPOSABLE,)),
    "siamese": ("", LABEL, (SIAMESE,)),
    "siamese-rnn": ("", LABEL, (SIAMESE, RNN)),
    "joined": ("", LABEL, JOINED),
    "esim-shuffled": ("shuffled", LABEL, ()),
    "esim-hidden": ("hidden", LABEL, ()),
    "relatedness-esim": ("", NUMBER, NUMERIC),
    "relatedness-siamese": ("", NUMBER, (*NUMERIC, SIAMESE)),
    "relatedness-siamese-rnn": ("", NUMBER, (*NUMERIC, SIAMESE, RNN)),
}
"""System → control, column, changes to the recipe."""

COLUMNS = {
    "accuracy": "accuracy, %",
    "macro F1": "macro F1",
    "Pearson": "Pearson's r, %",
    "Spearman": "Spearman's ρ, %",
    "MSE": "MSE",
}
PENALTY = 3e-4
"""The L2 penalty of the linear models, the best of 1e-5, 1e-4, 3e-4 and 1e-3 on held-out training pairs."""

Rows = Sequence[Sequence[str]]
Features = dict[str, float]


def read(file: Path) -> list[list[str]]:
    return [line.split("\t") for line in file.read_text("utf-8").splitlines()]


def split(rows: Rows, count: int) -> tuple[Rows, Rows]:
    """All but `count` random rows, and these."""
    mixed = [*rows]
    random.Random(7).shuffle(mixed)
    return mixed[count:], mixed[:count]


def changed(rows: Rows, control: str) -> Rows:
    """The rows of a control."""
    if control == "hidden":
        return [["hidden", *row[1:]] for row in rows]
    others = [row[1] for row in rows]
    random.Random(1).shuffle(others)
    return [[row[0], other, *row[2:]] for row, other in zip(rows, others, strict=True)] if control else rows


def write(parts: Mapping[str, Rows], folder: Path) -> dict[tuple[str, str], Path]:
    """Writes the files of all controls; returns them by control and part."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for control in ("", "shuffled", "hidden"):
        for name, rows in parts.items():
            file = folder / f"{name}{control and '-'}{control}.tsv"
            file.write_text("".join("\t".join(row) + "\n" for row in changed(rows, control)), "utf-8")
            files[control, name] = file
    return files


def shared_words(first: str, second: str) -> Features:
    """How many words two texts share, and how many only one of them has."""
    one, other = ({*re.findall(r"\w+", text.lower())} for text in (first, second))
    share = len(one & other) / max(1, len(one | other))
    left, right = len(one - other), len(other - one)
    found = {
        "bias": 1.0,
        "share": share,
        "of first": len(one & other) / max(1, len(one)),
        "length": (len(other) - len(one)) / 10,
    }
    found["of second"] = len(one & other) / max(1, len(other))
    bins = (
        f"share {round(10 * share)}",
        f"first {min(6, left)}",
        f"second {min(6, right)}",
        f"both {min(4, left)} {min(4, right)}",
    )
    return found | dict.fromkeys(bins, 1.0)


def words_and_shared(first: str, second: str) -> Features:
    """`shared_words`, and the words that only one text has."""
    one, other = ({*re.findall(r"\w+", text.lower())} for text in (first, second))
    only = [*(f"1 {word}" for word in one - other), *(f"2 {word}" for word in other - one)]
    return shared_words(first, second) | dict.fromkeys(only, 1.0)


def floors(known: Rows, asked: Rows) -> list[tuple[str, float, float]]:
    """Name, accuracy and Pearson's r of each floor."""
    labels = {label: number for number, label in enumerate(sorted({row[3] for row in known}))}
    goals = [torch.tensor([labels[row[3]] for row in rows]) for rows in (known, asked)]
    numbers = [torch.tensor([float(row[2]) for row in rows], dtype=torch.float64) for rows in (known, asked)]
    usual = Counter(row[3] for row in known).most_common(1)[0][0]
    found = [("most frequent label", 100 * mean(row[3] == usual for row in asked), 0.0)]
    for name, features in (("linear, shared words", shared_words), ("linear, words and shared words", words_and_shared)):
        tables = [[features(row[0], row[1]) for row in rows] for rows in (known, asked)]
        counts = Counter(unit for each in tables[0] for unit in each)
        places = {unit: place for place, unit in enumerate(unit for unit in counts if counts[unit] > 1)}
        x, z = (matrix(table, places) for table in tables)
        right = (z @ regress(x, goals[0], len(labels), PENALTY)).argmax(1) == goals[1]
        said = z @ ridge(x, numbers[0]) + numbers[0].mean()
        texts = [[str(value) for value in values.tolist()] for values in (said, numbers[1])]
        found.append((name, 100 * right.double().mean().item(), Pearson().score(Pearson().count(*texts)).value))
    return found


def matrix(table: Sequence[Features], places: Mapping[str, int]) -> Tensor:
    rows = torch.zeros(len(table), len(places), dtype=torch.float64)
    for row, each in zip(rows, table, strict=True):
        for unit, value in each.items():
            if unit in places:
                row[places[unit]] = value
    return rows


def ridge(x: Tensor, y: Tensor) -> Tensor:
    """The weights of a linear regression of centred numbers with an L2 penalty."""
    penalty = 2 * PENALTY * len(x) * torch.eye(x.size(1), dtype=x.dtype)
    return torch.linalg.solve(x.T @ x + penalty, x.T @ (y - y.mean()))


def plan(name: str, seed: int, files: Mapping[tuple[str, str], Path], options: argparse.Namespace) -> Run:
    control, column, changes = SYSTEMS[name]
    known, asked = (f"{files[control, part].absolute()}#1,2,{column}" for part in ("train", "test"))
    sets = (*common_settings(options.out.absolute()), f"train.seed={seed}", *changes, *options.set)
    sets = (*sets, scale_steps(RECIPE, sets, options.steps_scale))
    return Run(f"{name}-{seed}", RECIPE, known, sets, {"test": asked}, beam=0)


def table(outcomes: Sequence[Outcome], names: Sequence[str]) -> list[tuple[str, ...]]:
    """The scores of each system: those of all seeds, and their mean."""
    rows = []
    for name in names:
        own = [each for each in outcomes if each.run.name.rpartition("-")[0] == name]
        cells = []
        for key in COLUMNS:
            values = [each.scores["test"][key] for each in own if key in each.scores.get("test", {})]
            each = ", ".join(score_cell(outcome, "test", key, 1 if key != "MSE" else 3) for outcome in own) if values else ""
            cells.append(f"{mean(values):.{1 if key != 'MSE' else 3}f} ({each})" if len(values) > 1 else each)
        rows.append((name, *cells, f"{own[0].parameters / 1e3:.0f}k", f"{mean(outcome.seconds for outcome in own):.0f}"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with train.tsv and dev.tsv")
    parser.add_argument("--seeds", default="1,2,3", help="seeds, separated by commas (default 1,2,3)")
    parser.add_argument("--hold-out", type=int, default=0, help="score this many training pairs instead of dev.tsv")
    add_options(parser, at_once=1)
    options = parser.parse_args()
    known, asked = read(options.folder / "train.tsv"), read(options.folder / "dev.tsv")
    parts = dict(zip(("train", "test"), split(known, options.hold_out) if options.hold_out else (known, asked), strict=True))
    files = write(parts, options.out / "data")
    names = select(SYSTEMS, options.only)
    outcomes = sweep([plan(name, int(seed), files, options) for seed in options.seeds.split(",") for name in names], options)
    rows = [
        (f"*{name}*", f"{accuracy:.1f}", "", f"{r:.1f}", "", "", "", "")
        for name, accuracy, r in floors(parts["train"], parts["test"])
    ]
    headings = ("system", *COLUMNS.values(), "parameters", "seconds")
    sys.exit(report(options.out, "sick", markdown(headings, [*rows, *table(outcomes, names)]), outcomes))


if __name__ == "__main__":
    main()
