"""Parts of speech and named entities, beside the most frequent tag of each word.

    python benchmarks/tagging.py --out OUT [--ewt DIR] [--names DIR] [--seeds 1,2] [--at-once 4] [--minutes 9]

ewt     train.tsv and dev.tsv of UD English EWT, with a word, its universal tag and its Penn tag on each line
names   train.tsv.gz and dev.tsv.gz of CoNLL-2002 (Spanish), with a word and its tag

Weights are those of the best validation, so scores on the dev data are slightly too high. For the time on two cores of a CPU:
`--at-once 1 --set train.device=cpu --set train.threads=2`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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

from weft.runs.open_run import open_run
from weft.tasks.tagging.task import TaggingTask

COLUMNS = {"accuracy": "accuracy, %", "unknown accuracy": "unknown words, %", "F1": "F1, %"}
STACK = "model.encoder={kind: transformer, dim: 256, heads: 4, feedforward: 512, layers: 2, dropout: 0.33}"
"""Self-attention in place of the LSTM; the feed-forward networks see one word, or three (`feedforward_width`)."""
SYSTEMS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "universal": ("universal", "tagger", ()),
    "universal-crf": ("universal", "tagger", ("task.output=crf",)),
    "universal-transformer": ("universal", "tagger", (STACK,)),
    "universal-convolutions": ("universal", "tagger", (STACK, "model.encoder.feedforward_width=3")),
    "penn": ("penn", "tagger", ()),
    "names-crf": ("names", "tagger-crf", ()),
    "names-softmax": ("names", "tagger-crf", ("task.output=softmax",)),
}
"""System → data, recipe, changes to it."""


def find_data(options: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """The training and validation data of each part that was given."""
    found: dict[str, tuple[str, str]] = {}
    if options.ewt:
        files = str(options.ewt.absolute() / "train.tsv"), str(options.ewt.absolute() / "dev.tsv")
        found["universal"], found["penn"] = files, (f"{files[0]}#1,3", f"{files[1]}#1,3")
    if options.names:
        found["names"] = str(options.names.absolute() / "train.tsv.gz"), str(options.names.absolute() / "dev.tsv.gz")
    return found


def plan(name: str, seed: int, files: tuple[str, str], options: argparse.Namespace) -> Run:
    _, recipe, changes = SYSTEMS[name]
    sets = (*common_settings(options.out.absolute()), f"train.seed={seed}", *changes, *options.set)
    sets = (*sets, scale_steps(recipe, sets, options.steps_scale))
    return Run(f"{name}-{seed}", recipe, files[0], sets, {"dev": files[1]}, valid=files[1])


def floor_rows(outcomes: Sequence[Outcome], data: Mapping[str, tuple[str, str]], out: Path) -> list[tuple[str, ...]]:
    """For each data set, what the most frequent tag of each word scores."""
    runs = {SYSTEMS[each.run.name.rpartition("-")[0]][0]: each.run.name for each in outcomes if each.scores}
    rows = []
    for name, run in runs.items():
        task = open_run(out / run, device="cpu").task
        assert isinstance(task, TaggingTask)
        scores = task.floor([text for _, text in task.data_format.open(data[name][1])])
        rows.append(
            (f"*floor of {name}: most frequent tag*", *(f"{scores[key]:.2f}" if key in scores else "" for key in COLUMNS))
        )
    return [(*row, "", "") for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ewt", type=Path, help="folder of UD English EWT")
    parser.add_argument("--names", type=Path, help="folder of CoNLL-2002")
    parser.add_argument("--seeds", default="1,2", help="seeds, separated by commas (default 1,2)")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    data = find_data(options)
    names = [name for name in select(SYSTEMS, options.only) if SYSTEMS[name][0] in data]
    if not names:
        sys.exit("there is nothing to train on; give --ewt or --names")
    runs = [plan(name, int(seed), data[SYSTEMS[name][0]], options) for seed in options.seeds.split(",") for name in names]
    outcomes = sweep(runs, options, prepare=len(names))
    rows = [
        (
            each.run.name,
            *(score_cell(each, "dev", key) for key in COLUMNS),
            f"{each.parameters / 1e6:.1f}M",
            f"{each.seconds:.0f}",
        )
        for each in outcomes
    ]
    headings = ("system", *COLUMNS.values(), "parameters", "seconds")
    found = markdown(headings, [*sorted(rows), *floor_rows(outcomes, data, options.out)])
    sys.exit(report(options.out, "tagging", found, outcomes))


if __name__ == "__main__":
    main()
