"""Several corpora, BPE-dropout and R-Drop on Multi30k, next to models trained without them.

    python benchmarks/corpora.py DIR --out OUT [--only multilingual,noise/both] [--seeds 1,2] [--at-once 6] [--minutes 9]

DIR holds train, val and test_2016_flickr, each as .en, .de and .fr.

multilingual  English to German and French in one model (tags de and fr), and in one model each, with the same vocabulary, as
              many steps per language, and a dropout of 0.3 and of 0.4
temperature   29,000 English-German pairs beside 1,000 English-French ones: drawn in proportion, and with a temperature of 5;
              and the 1,000 alone
noise         5,000 English-German pairs: plain, with BPE-dropout, with R-Drop, with both

All systems are transformer-small. Those with 5,000 pairs or fewer have a smaller vocabulary and keep the checkpoint with the
best BLEU on the validation data. Scores are BLEU on test_2016_flickr (beam 5, sacreBLEU 13a, cased). The floor copies the
source. The same command resumes what was interrupted.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from floors import copied
from trainings import Outcome, Run, add_options, common_settings, markdown, report, select, sweep

from weft.config import yaml_document
from weft.data.text_lines import read_lines

FEW, MORE = 1_000, 5_000
SEED = 1
"""Of the subsets."""

SMALL = (
    *("train.steps=2500", "train.batch_tokens=4096", "train.validate_every=500", "train.save_every=500"),
    *("train.keep_best=true", "train.best_by=bleu"),
)
"""For a few thousand pairs, on which a long training overfits."""

NOISY = ("train.steps=4000", *SMALL[1:])
"""With noise it takes longer."""

FULL = ("train.steps=2000", "train.batch_tokens=8192")
"""For 29,000 pairs."""

MULTI = ("data.vocabulary=14000", "train.steps=4000", "train.batch_tokens=8192")
"""For two languages: twice the pairs, so twice the steps and a larger vocabulary."""
SINGLE = (*FULL, "data.vocabulary=14000")
DROPOUTS = (0.3, 0.4)

R_DROP = "task.r_drop=5"
SLOW = {*MULTI, R_DROP} - {*SINGLE}
"""Settings of systems that take twice as long as others."""


def files(folder: Path, split: str, target: str) -> str:
    return f"{folder / split}.en,{folder / split}.{target}"


def subset(folder: Path, count: int, target: str, out: Path) -> str:
    """Writes a random subset of the training pairs, unless it is there. Returns its files."""
    sides = [out / f"{count}.{side}" for side in ("en", target)]
    out.mkdir(parents=True, exist_ok=True)
    for side in sides:
        lines = list(read_lines(folder / f"train{side.suffix}"))
        chosen = np.sort(np.random.default_rng(SEED).permutation(len(lines))[:count])
        side.write_text("".join(f"{lines[row]}\n" for row in chosen), "utf-8")
    return ",".join(map(str, sides))


def tagged(corpora: Mapping[str, str]) -> list[dict[str, Any]]:
    """One corpus per tag."""
    return [{"files": name, "tag": tag} for tag, name in corpora.items()]


def systems(folder: Path, out: Path) -> dict[str, dict[str, tuple[list[dict[str, Any]], tuple[str, ...], tuple[str, ...]]]]:
    """Part → system → its training corpora, its settings, and its target languages."""
    full = {target: files(folder, "train", target) for target in ("de", "fr")}
    few, more = subset(folder, FEW, "fr", out / "data"), subset(folder, MORE, "de", out / "data")
    mixed, plain = tagged({"de": full["de"], "fr": few}), [{"files": more}]
    drawn = [{"files": more, "noise": {"subword": 0.1}}]
    size, tiny = "data.vocabulary=4000", "data.vocabulary=2000"
    return {
        "multilingual": {
            f"{name} dropout {dropout}": (corpora, (*sets, f"model.dropout={dropout}"), targets)
            for dropout in DROPOUTS
            for name, corpora, sets, targets in (
                ("en-de alone", [{"files": full["de"]}], SINGLE, ("de",)),
                ("en-fr alone", [{"files": full["fr"]}], SINGLE, ("fr",)),
                ("en-de+fr", tagged(full), MULTI, ("de", "fr")),
            )
        },
        "temperature": {
            "1000 alone": ([{"files": few}], (tiny, *SMALL), ("fr",)),
            "with de temperature 1": (mixed, FULL, ("fr", "de")),
            "with de temperature 5": (mixed, (*FULL, "data.temperature=5"), ("fr", "de")),
        },
        "noise": {
            "plain": (plain, (size, *NOISY), ("de",)),
            "BPE-dropout": (drawn, (size, *NOISY), ("de",)),
            "R-Drop": (plain, (size, *NOISY, R_DROP), ("de",)),
            "both": (drawn, (size, *NOISY, R_DROP), ("de",)),
        },
    }


def plan(part: str, name: str, seed: int, options: argparse.Namespace) -> Run:
    train, sets, targets = systems(options.folder, options.out)[part][name]
    tags = {target: target for target in targets} if "tag" in train[0] else {}
    valid = [{"files": files(options.folder, "val", target), "tag": tags.get(target)} for target in targets]
    every = (f"data.train={yaml_document.scalar(train)}", f"data.valid={yaml_document.scalar(valid)}", f"train.seed={seed}")
    quick = (
        ()
        if options.steps_scale == 1.0
        else (f"train.steps={max(2, int(2000 * options.steps_scale))}", "train.validate_every=0")
    )
    settings = (*sets, *every, *common_settings(options.out), "train.packed=auto", *quick, *options.set)
    tests = {target: files(options.folder, "test_2016_flickr", target) for target in targets}
    folder = f"{part}-{name.replace(' ', '_').replace(',', '')}-{seed}"
    return Run(folder, "transformer-small", "", settings, tests, tags=tags)


def table(plans: Mapping[tuple[str, str, int], Outcome], options: argparse.Namespace) -> str:
    scores: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (part, name, _), outcome in plans.items():
        seconds[part, name].append(outcome.seconds)
        for target, found in outcome.scores.items():
            scores[part, name, target].append(found["BLEU"])
    rows = []
    for (part, name, target), values in scores.items():
        each = ", ".join(f"{value:.2f}" for value in values)
        first = next(key for key in scores if key[0] == part and key[2] == target)
        gain = "" if first[1] == name else f"{np.mean(values) - np.mean(scores[first]):+.2f}"
        rows.append((part, name, target, f"{np.mean(values):.2f}", each, gain, f"{np.mean(seconds[part, name]):.0f}"))
    for target in ("de", "fr"):
        floor = copied("", files(options.folder, "test_2016_flickr", target))["source copied"]
        rows.append(("", "source copied", target, f"{floor:.2f}", "", "", ""))
    headings = ("part", "system", "to", "mean BLEU", "BLEU of each seed", "against the first", "seconds of training")
    note = f"With up to {options.at_once} runs sharing the device."
    return f"{markdown(headings, rows)}\n{note}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="1,2", help="seeds, separated by commas")
    add_options(parser, at_once=6)
    options = parser.parse_args()
    known = systems(options.folder, options.out)
    names = {f"{part}/{name}": (part, name) for part, some in known.items() for name in some}
    parts = {*select({**known, **names}, options.only)}
    wanted = [(part, name) for both, (part, name) in names.items() if parts & {part, both}]
    chosen = [(part, name, int(seed)) for part, name in wanted for seed in options.seeds.split(",")]
    longest = sorted(chosen, key=lambda each: SLOW.isdisjoint(known[each[0]][each[1]][1]))  # they start first
    done = dict(zip(longest, sweep([plan(*each, options) for each in longest], options, prepare=0), strict=True))
    outcomes = {each: done[each] for each in chosen}
    raise SystemExit(report(options.out, "corpora", table(outcomes, options), list(outcomes.values())))


if __name__ == "__main__":
    main()
