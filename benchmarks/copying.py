"""Summarises with and without a pointer under one budget: how many rare words are copied, and how good the text is.

    python benchmarks/copying.py DIR --out OUT [--at-once 2] [--minutes 9] [--steps-scale 0.01] [--set train.device=cpu …]

DIR holds train.tsv and dev.tsv: a long text, a tab, a short text. Both systems use the recipe `pointer`; one is its base model
alone, with the same words, vocabulary and steps. The last 500 pairs of train.tsv are held out to choose the checkpoint by loss.
dev.tsv is scored with a beam of 4. The table gives the share of copied words: of the words that a reference shares with its
source, how many the output has. It counts words outside the vocabulary, and words that occur at most ten times in training.
ROUGE-L is the mean F1 of the longest common subsequence, lowercased; chrF2 and BLEU are sacreBLEU's.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import yaml
from trainings import Outcome, Run, add_options, markdown, report, scale_steps, score_cell, select, sweep

from weft.config.sections import load_config
from weft.data.formats import open_pairs
from weft.data.symbols import JOINED, WordTokenizer
from weft.data.tokenizer import load_tokenizers

RECIPE, RARE, HELD_OUT = "pointer", 10, 500


def systems() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name → title, and changes to the recipe."""
    base = yaml.safe_dump(load_config(RECIPE).model["base"], default_flow_style=True, width=10_000).strip()
    return {"pointer": ("pointer-generator", ()), "base": ("the same without a pointer", (f"model={base}",))}


def split(folder: Path, out: Path) -> tuple[str, str]:
    """Splits the training data into two files: training, and pairs held out to choose a checkpoint."""
    lines = (folder / "train.tsv").read_text("utf-8").splitlines(keepends=True)
    out.mkdir(parents=True, exist_ok=True)
    parts = {"train": lines[:-HELD_OUT], "valid": lines[-HELD_OUT:]}
    for name, part in parts.items():
        (out / f"{name}.tsv").write_text("".join(part), "utf-8")
    return f"{out}/train.tsv", f"{out}/valid.tsv"


def words(text: str) -> set[str]:
    """The words of a text, without punctuation."""
    return {word for word in WordTokenizer().split(text) if JOINED not in word and any(map(str.isalnum, word))}


def copied(pairs: Sequence[tuple[str, str]], outputs: Sequence[str], counts: Callable[[str], bool]) -> tuple[int, int]:
    """Words that `counts` accepts and a reference shares with its source: how many the outputs have, and how many exist."""
    shared = [{word for word in words(source) & words(target) if counts(word)} for source, target in pairs]
    return sum(len(each & words(text)) for each, text in zip(shared, outputs, strict=True)), sum(map(len, shared))


def rouge_l(outputs: Iterable[str], references: Iterable[str]) -> float:
    """Mean F1 of the longest common subsequence (Lin 2004), in percent."""
    scores = []
    for output, reference in zip(outputs, references, strict=True):
        ours, theirs = (re.findall(r"\w+", text.lower()) for text in (output, reference))
        scores.append(2 * common_length(ours, theirs) / max(1, len(ours) + len(theirs)))
    return 100 * sum(scores) / len(scores)


def common_length(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    best = [0] * (len(theirs) + 1)
    for word in ours:
        before = best[:]
        for place, other in enumerate(theirs):
            best[place + 1] = before[place] + 1 if word == other else max(best[place], before[place + 1])
    return best[-1]


def row(outcome: Outcome, title: str, out: Path, folder: Path, counts: Counter[str]) -> list[str]:
    text = out / "texts" / f"{outcome.run.name}.dev.txt"
    if outcome.error or not text.exists():
        return [title, f"{outcome.parameters:,}", *["–"] * 6]
    pairs, outputs = list(open_pairs(f"{folder}/dev.tsv")), text.read_text("utf-8").splitlines()
    vocabulary, _ = load_tokenizers(out / outcome.run.name, outcome.run.config().data.tokenizer)
    unknown = copied(pairs, outputs, lambda word: bool(vocabulary.unknown(word)))
    rare = copied(pairs, outputs, lambda word: counts[word] <= RARE)
    shares = [f"{100 * copies / max(1, total):.1f} % of {total}" for copies, total in (unknown, rare)]
    rouge = rouge_l(outputs, [target for _, target in pairs])
    scores = [f"{rouge:.2f}", score_cell(outcome, "dev", "chrF2"), score_cell(outcome, "dev", "BLEU")]
    return [title, f"{outcome.parameters:,}", *shares, *scores, f"{outcome.seconds:.0f} s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    add_options(parser, at_once=2)
    options = parser.parse_args()
    titles_and_sets = systems()
    data, valid = split(options.folder, options.out / "data")
    steps = scale_steps(RECIPE, (), options.steps_scale)
    sets = (steps, f"data.valid=[{valid}]", f"data.cache={options.out / 'cache'}", *options.set)
    tests = {"dev": f"{options.folder}/dev.tsv"}
    names = select(titles_and_sets, options.only)
    runs = [Run(name, RECIPE, data, (*titles_and_sets[name][1], *sets), tests, beam=4) for name in names]
    outcomes = sweep(runs, options, prepare=len(runs))
    counts = Counter(word for pair in open_pairs(data) for text in pair for word in words(text))
    shares = ["unknown words copied", f"rare words copied (seen at most {RARE} times)"]
    headings = ["system", "parameters", *shares, "ROUGE-L", "chrF2", "BLEU", "training"]
    rows = [row(each, titles_and_sets[each.run.name][0], options.out, options.folder, counts) for each in outcomes]
    sys.exit(report(options.out, "copying", markdown(headings, rows), outcomes))


if __name__ == "__main__":
    main()
