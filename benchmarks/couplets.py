"""Couplets: second lines for unseen first lines, with and without the rules of the search, beside a character map.

    python benchmarks/couplets.py DIR --out OUT [--seeds 2] [--recipe couplets] [--minutes 9] [--steps-scale 0.01] [--set …]

DIR holds train.tsv and dev.tsv: a first line, a tab, a second line of the same length. The recipe is trained once per seed on
train.tsv, for a fixed number of steps; dev.tsv is only scored. Perplexity is per character, the end of the line included. The
other scores are described in `weft_studies/couplets.py`. Cells have one figure per seed. The floor writes, for each
character, the one that answers it most often in training. OUT/examples.md has twenty lines of dev.tsv, written with all rules.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from trainings import Run, add_options, frugal_settings, markdown, report, scale_steps, sweep

import weft
from weft.data.formats import open_pairs
from weft.runs.translator import Translator
from weft_studies.couplets import score_couplets

Pairs = Sequence[tuple[str, str]]

RULES: dict[str, list[str]] = {
    "no rules": [],
    "same length": ["same_length"],
    "same length, mirrored repeats": ["same_length", "mirror_repeats"],
    "same length, no shared character": ["same_length", "no_shared"],
    "all rules": ["same_length", "mirror_repeats", "no_shared"],
}
EXAMPLES = 20


def character_map(train: Pairs, lines: Sequence[str]) -> list[str]:
    """Each character replaced by the one that stands at its place most often; an unseen one by the most frequent of all."""
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for first, second in train:
        for character, answer in zip(first, second, strict=False):
            answers[character][answer] += 1
    best = {character: max(found, key=lambda each: (found[each], each)) for character, found in answers.items()}
    usual = Counter(best.values()).most_common(1)[0][0]
    return ["".join(best.get(character, usual) for character in line) for line in lines]


def scores(pairs: Pairs, seconds: Sequence[str]) -> list[float]:
    return list(astuple(score_couplets([first for first, _ in pairs], seconds, [second for _, second in pairs])))


def write(translator: Translator, pairs: Pairs, rules: list[str]) -> list[str]:
    return [each.text for each in translator.stream([first for first, _ in pairs], rules=rules)]


def joined(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def table(train: Pairs, dev: Pairs, dev_file: str, runs: Sequence[Path]) -> str:
    """Floor and references, then the runs with each set of rules."""
    translators = [weft.load(run) for run in runs]
    perplexities = [math.exp(translator.score([dev_file])["loss"]) for translator in translators]
    floor, references = character_map(train, [first for first, _ in dev]), [second for _, second in dev]
    fixed = {"*floor: character map*": floor, "*references*": references}
    rows = [[title, "", *(f"{value:.2f}" for value in scores(dev, texts))] for title, texts in fixed.items()]
    for title, rules in RULES.items():
        found = [scores(dev, write(translator, dev, rules)) for translator in translators]
        rows.append([title, joined(perplexities), *(joined(column) for column in zip(*found, strict=True))])
        print(" · ".join(rows[-1]), flush=True)
    return markdown(["search", "perplexity", "length %", "mirrored %", "shared %", "BLEU-2"], rows)


def examples(translator: Translator, pairs: Pairs) -> str:
    """Some lines with what the run and the reference answer."""
    chosen = pairs[:: max(1, len(pairs) // EXAMPLES)][:EXAMPLES]
    answers = write(translator, chosen, RULES["all rules"])
    rows = [[first, answer, second] for (first, second), answer in zip(chosen, answers, strict=True)]
    return markdown(["first line", "second line by weft", "reference"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", default="couplets")
    parser.add_argument("--seeds", type=int, default=2)
    add_options(parser, at_once=2)
    options = parser.parse_args()
    files = {split: str(options.folder / f"{split}.tsv") for split in ("train", "dev")}
    steps = scale_steps(options.recipe, options.set, options.steps_scale)
    shared = (steps, *frugal_settings(options.out), *options.set)
    runs = [
        Run(f"{options.recipe}-{seed}", options.recipe, files["train"], (*shared, f"train.seed={seed}"))
        for seed in range(1, options.seeds + 1)
    ]
    outcomes = sweep(runs, options)
    folders = [options.out / each.run.name for each in outcomes if not each.error]
    train, dev = (list(open_pairs(files[split])) for split in ("train", "dev"))
    text = table(train, dev, files["dev"], folders) if folders else ""
    if folders:
        (options.out / "examples.md").write_text(examples(weft.load(folders[0]), dev), "utf-8")
    trained = [f"{each.run.name}: {each.parameters:,} parameters, {each.seconds:.0f} s of training" for each in outcomes]
    sys.exit(report(options.out, "couplets", text + "\n" + "\n".join(trained) + "\n", outcomes))


if __name__ == "__main__":
    main()
