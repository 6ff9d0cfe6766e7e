"""Many labels with few examples: what people say about the picture that a caption describes.

    python benchmarks/few_shot_labels.py FLICKR --out OUT [--seeds 1,2,3] [--only plain,texts] [--at-once 4]

FLICKR holds captions.train.tsv and captions.dev.tsv: a picture, a tab and one of its five captions per line. The input is a
caption, and its labels are the words that at least two of the other four captions have, without the most frequent words. Nobody
told which words of a caption matter, and most labels have few pictures. The text of a label is the label itself.

Labels are grouped by the number of their training pictures. A figure is the mean over captions of the share of right labels of
a group that are among the five likeliest of this group (R@5 of Rios & Kavuluru 2018, who also rank each group by itself).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainings import Run, add_options, common_settings, markdown, report, scale_steps, select, sweep

import weft
from weft.data.text_lines import read_lines
from weft.data.word_vectors.vectors import split_words

RECIPE = "classifier"
STOPPED, LEAST, BEST = 60, 2, 5
GROUPS = {"1–5 pictures": (1, 5), "6–20": (6, 20), "over 20": (21, 10**9)}
TEXTS = "task.pooling={kind: label_attentive, queries: text}"
SYSTEMS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "learned": ("task.pooling={kind: label_attentive}",),
    "texts": (TEXTS,),
    "shuffled-texts": (TEXTS, "task.label_texts=SHUFFLED"),
}
"""System → changes to the recipe. The last one is a control: each label has the text of another one."""

Example = tuple[str, str, list[str]]
"""A picture, a caption and its labels."""


def examples(folder: Path) -> tuple[list[Example], list[Example]]:
    """The examples of both parts; those without a label that training has are left out."""
    captions = {part: list(read_captions(folder / f"captions.{part}.tsv")) for part in ("train", "dev")}
    often = Counter(word for _, texts in captions["train"] for text in texts for word in split_words(text))
    stopped = {word for word, _ in often.most_common(STOPPED)}
    train, dev = ([each for some in captions[part] for each in labelled(some, stopped)] for part in ("train", "dev"))
    known = {label for *_, labels in train for label in labels}
    cut = [(picture, text, [label for label in labels if label in known]) for picture, text, labels in dev]
    return train, [each for each in cut if each[2]]


def read_captions(file: Path) -> Iterator[tuple[str, list[str]]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in read_lines(file):
        picture, _, text = line.partition("\t")
        found[picture].append(text)
    yield from found.items()


def labelled(captions: tuple[str, Sequence[str]], stopped: set[str]) -> Iterator[Example]:
    picture, texts = captions
    words = [{word for word in split_words(text) if word.isalpha() and word not in stopped} for text in texts]
    for number, text in enumerate(texts):
        counts = Counter(word for other, some in enumerate(words) if other != number for word in some)
        labels = sorted(word for word, count in counts.items() if count >= LEAST)
        if labels:
            yield picture, text, labels


def write(rows: Sequence[Example], file: Path) -> str:
    lines = (json.dumps({"text": text, "label": labels}, ensure_ascii=False) + "\n" for _, text, labels in rows)
    file.write_text("".join(lines), "utf-8")
    return str(file)


def write_shuffled(labels: Sequence[str], file: Path) -> Path:
    """A file in which each label has the text of another one."""
    others = random.Random(0).sample(labels, len(labels))
    file.write_text("".join(f"{label}\t{other}\n" for label, other in zip(labels, others, strict=True)), "utf-8")
    return file


def recall(ranked: Sequence[Sequence[str]], test: Sequence[Example], group: set[str]) -> float:
    """R@5 in per cent of one group, given all labels of each example, the likeliest first."""
    shares = []
    for names, (_, _, labels) in zip(ranked, test, strict=True):
        if right := group.intersection(labels):
            best = [name for name in names if name in group][:BEST]
            shares.append(len(right.intersection(best)) / min(BEST, len(right)))
    return 100 * statistics.mean(shares)


def floors(labels: Mapping[str, int], test: Sequence[Example]) -> dict[str, list[list[str]]]:
    """The most frequent labels, and before them those that the caption has itself."""
    usual = sorted(labels, key=lambda label: (-labels[label], label))
    words = [set(split_words(text)) for _, text, _ in test]
    same = [[*(label for label in usual if label in own), *(label for label in usual if label not in own)] for own in words]
    return {"*floor: most frequent labels*": [usual] * len(test), "*floor: words of the caption, then these*": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="1,2,3", help="seeds, separated by commas (default 1,2,3)")
    add_options(parser, at_once=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    train, test = examples(options.folder)
    pictures: defaultdict[str, set[str]] = defaultdict(set)
    for picture, _, labels in train:
        for label in labels:
            pictures[label].add(picture)
    counts = {label: len(some) for label, some in pictures.items()}
    groups = {name: {each for each in counts if low <= counts[each] <= high} for name, (low, high) in GROUPS.items()}
    print({name: len(some) for name, some in groups.items()}, len(train), len(test), flush=True)
    shuffled = write_shuffled(sorted(counts), options.out / "shuffled.tsv")
    data = write(train, options.out / "train.jsonl")
    runs = []
    for name in select(SYSTEMS, options.only):
        own = [each.replace("SHUFFLED", str(shuffled.absolute())) for each in SYSTEMS[name]]
        for seed in options.seeds.split(","):
            sets = (*common_settings(options.out.absolute()), "task.multi_label=true", "task.label_smoothing=0", *own)
            sets = (*sets, f"train.seed={seed}", "train.validate_every=0", "train.best_by=loss", *options.set)
            runs.append(Run(f"{name}-{seed}", RECIPE, data, (*sets, scale_steps(RECIPE, sets, options.steps_scale)), {}))
    outcomes = sweep(runs, options)
    ranked = floors(counts, test)
    for run in [each.run.name for each in outcomes if not each.error]:
        found = weft.load(options.out / run).translate([text for _, text, _ in test])
        ranked[run] = [list(label.probabilities) for label in found]
    rows = [[name, *(f"{recall(some, test, group):.1f}" for group in groups.values())] for name, some in ranked.items()]
    sys.exit(report(options.out, "few_shot_labels", markdown(["system", *groups], rows), outcomes))


if __name__ == "__main__":
    main()
