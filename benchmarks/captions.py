"""Trains captioners on Flickr8k and prints one table, with floors and the control of shuffled pictures.

    python benchmarks/captions.py DIR --out OUT [--at-once 6] [--minutes 9] [--only cnn,features] [--seeds 1,2]

DIR holds captions.train.tsv, captions.dev.tsv, images96.train.zip and images96.dev.zip. There is no validation, and no
checkpoint is selected. Scores are CIDEr-D and BLEU-4 on the dev pictures with a beam of 5. "shuffled": each picture has
the captions of another, so only what fits any picture scores. Floor: the best of some captions, given to all.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from trainings import Outcome, Run, add_options, common_settings, markdown, report, scale_steps, score_cell, select, sweep

from weft.data.column_checks_and_listed_files import open_listed
from weft.evaluation.metrics import score
from weft.tasks.captioning.data import captions_by_image
from weft.tasks.captioning.metrics import CaptionBleu, CiderD, words

CONSTANTS = 150
"""Training captions that are tried as the caption of every picture."""

BY_HAND = ("a black and white dog is running in the water .", "a man in a blue shirt is standing in front of a building")
"""Other captions that are tried: the best ones found by hand, by CIDEr-D and by BLEU-4."""

FEATURES = "model.front={kind: efficientnet}"
HARD = ("model.decoder.attention=hard", "task.doubly_stochastic_weight=0", "task.draws=4")


@dataclass(frozen=True)
class System:
    """A row of the table: title, recipe and changes to it."""

    title: str
    recipe: str
    sets: tuple[str, ...] = ()


SYSTEMS = {
    "cnn": System("convolutions, Transformer", "captioner"),
    "patches": System(
        "patches, Transformer", "captioner", ("model.front={kind: patches, patch: 12}", "model.encoder.layers=3")
    ),
    "cnn-sat-soft": System("convolutions, Show Attend Tell, soft", "show-attend-tell"),
    "cnn-sat-hard": System("convolutions, Show Attend Tell, hard", "show-attend-tell", HARD),
    "features": System("EfficientNet-Lite0, Transformer", "captioner-features"),
    "features-sat-soft": System("EfficientNet-Lite0, Show Attend Tell, soft", "show-attend-tell", (FEATURES,)),
    "features-sat-hard": System("EfficientNet-Lite0, Show Attend Tell, hard", "show-attend-tell", (FEATURES, *HARD)),
}


def data_of(folder: Path, part: str) -> str:
    return f"{folder / f'images96.{part}.zip'},{folder / f'captions.{part}.tsv'}"


def shuffle(folder: Path, out: Path) -> str:
    """Writes a list in which the pictures of the dev part have changed places, and returns its data."""
    pairs = [line.split("\t") for line in (folder / "captions.dev.tsv").read_text("utf-8").splitlines()]
    names = sorted({name for name, _ in pairs})
    moved = random.Random(1).sample(names, len(names))
    other = dict(zip(moved, moved[1:] + moved[:1]))
    out.mkdir(parents=True, exist_ok=True)
    file = out / "shuffled.tsv"
    file.write_text("".join(f"{other[name]}\t{caption}\n" for name, caption in pairs), "utf-8")
    return f"{folder / 'images96.dev.zip'},{file}"


def floors(folder: Path) -> str:
    """The best constant caption by each metric, and a human caption against the others."""
    texts = [text for _, text in captions_by_image([open_listed(data_of(folder, "dev"), lowercase=True)])]
    known = [caption for _, caption in open_listed(data_of(folder, "train"), lowercase=True)]
    tried = random.Random(1).sample([caption for caption in known if 6 <= len(words(caption)) <= 13], CONSTANTS)
    metrics = [CiderD(), CaptionBleu()]
    constants = [(caption, score([caption] * len(texts), texts, metrics)) for caption in (*tried, *BY_HAND)]
    rows = []
    for metric in metrics:
        caption, found = max(constants, key=lambda item: item[1][metric.name].value)
        rows.append((f"constant, best {metric.name}: *{caption}*", *(f"{each.value:.3f}" for each in found.values())))
    human = score([text.split("\n")[0] for text in texts], ["\n".join(text.split("\n")[1:]) for text in texts], metrics)
    rows.append(("first human caption against the others", *(f"{each.value:.3f}" for each in human.values())))
    return markdown(("floor and ceiling", "CIDEr-D", "BLEU-4"), rows)


def plan(name: str, seed: int, tests: dict[str, str], options: argparse.Namespace) -> Run:
    system = SYSTEMS[name]
    unselected = ("train.best_by=loss", "train.keep_best=false", "train.validate_every=0", f"train.seed={seed}")
    sets = (*system.sets, *unselected, *common_settings(options.out.absolute()), *options.set)
    sets = (*sets, scale_steps(system.recipe, sets, options.steps_scale))
    return Run(f"{name}-{seed}", system.recipe, data_of(options.folder.absolute(), "train"), sets, tests)


def table(outcomes: list[Outcome], at_once: int) -> str:
    headings = ("system", "", "parameters", "CIDEr-D", "BLEU-4", "CIDEr-D shuffled", "BLEU-4 shuffled", "seconds")
    rows = [
        (
            f"`{each.run.name}`",
            SYSTEMS[each.run.name.rpartition("-")[0]].title,
            f"{each.parameters / 1e6:.1f}M",
            score_cell(each, "dev", "CIDEr-D", digits=3),
            score_cell(each, "dev", "BLEU-4"),
            score_cell(each, "shuffled", "CIDEr-D", digits=3),
            score_cell(each, "shuffled", "BLEU-4"),
            f"{each.seconds:.0f}",
        )
        for each in outcomes
    ]
    return f"{markdown(headings, rows)}\nTraining seconds with up to {at_once} runs sharing the device.\n"


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("folder", type=Path, help="folder of Flickr8k")
    result.add_argument("--seeds", default="1,2", help="seeds of each system")
    add_options(result, at_once=6)
    return result


def main() -> None:
    options = parser().parse_args()
    tests = {
        "dev": data_of(options.folder.absolute(), "dev"),
        "shuffled": shuffle(options.folder.absolute(), options.out.absolute()),
    }
    names = select(SYSTEMS, options.only)
    runs = [plan(name, int(seed), tests, options) for seed in options.seeds.split(",") for name in names]
    outcomes = sweep(runs, options)
    sys.exit(report(options.out, "captions", f"{floors(options.folder)}\n{table(outcomes, options.at_once)}", outcomes))


if __name__ == "__main__":
    main()
