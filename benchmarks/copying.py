"""Summaries with and without a pointer under one budget: how many rare words are copied, and how good the text is.

    python benchmarks/copying.py DIR --out OUT [--at-once 2] [--minutes 9] [--steps-scale 0.01] [--set train.device=cpu …]

DIR holds train.tsv and dev.tsv: a long text, a tab, a short one. Both systems have the recipe `pointer`; one is its base model
alone, on the same words, vocabulary and steps. The last 500 pairs of train.tsv are not trained on: they choose the checkpoint,
by loss. Scored is dev.tsv, by a beam of 4. Of the words of a reference that stand in its source, the table says what share
the output has: of those outside the vocabulary, and of those that training has at most ten times. ROUGE-L is the mean F1 of
the longest common subsequence, in small letters; chrF2 and BLEU are sacreBLEU's.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import yaml
from trainings import Outcome, Run, Sweep, about, add_options, chosen, markdown, shown, warm, write

from weft.config.sections import load_config
from weft.data.formats import open_pairs
from weft.data.symbols import JOINED, WordTokenizer
from weft.data.tokenizer import load_tokenizers

RECIPE, RARE, HELD_OUT = "pointer", 10, 500


def systems() -> dict[str, tuple[str, tuple[str, ...]]]:
    """name → what it is, and what is changed in the recipe."""
    base = yaml.safe_dump(load_config(RECIPE).model["base"], default_flow_style=True, width=10_000).strip()
    return {"pointer": ("pointer-generator", ()), "base": ("the same without a pointer", (f"model={base}",))}


def split(folder: Path, out: Path) -> tuple[str, str]:
    """The training data in two files: what is trained on, and what is held out to choose a checkpoint."""
    lines = (folder / "train.tsv").read_text("utf-8").splitlines(keepends=True)
    out.mkdir(parents=True, exist_ok=True)
    parts = {"train": lines[:-HELD_OUT], "valid": lines[-HELD_OUT:]}
    for name, part in parts.items():
        (out / f"{name}.tsv").write_text("".join(part), "utf-8")
    return f"{out}/train.tsv", f"{out}/valid.tsv"


def words(text: str) -> set[str]:
    """The words of a text, punctuation left out."""
    return {word for word in WordTokenizer().words(text) if JOINED not in word and any(map(str.isalnum, word))}


def copied(pairs: Sequence[tuple[str, str]], outputs: Sequence[str], asked: Callable[[str], bool]) -> tuple[int, int]:
    """Of the words asked for that a reference has from its source: how many the output has, and how many there are."""
    wanted = [{word for word in words(source) & words(target) if asked(word)} for source, target in pairs]
    return sum(len(each & words(text)) for each, text in zip(wanted, outputs, strict=True)), sum(map(len, wanted))


def rouge_l(outputs: Iterable[str], references: Iterable[str]) -> float:
    """Mean F1 of the longest common subsequence (Lin 2004), in percent."""
    scores = []
    for output, reference in zip(outputs, references, strict=True):
        ours, theirs = (re.findall(r"\w+", text.lower()) for text in (output, reference))
        scores.append(2 * common(ours, theirs) / max(1, len(ours) + len(theirs)))
    return 100 * sum(scores) / len(scores)


def common(ours: Sequence[str], theirs: Sequence[str]) -> int:
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
    shares = [f"{100 * found / max(1, wanted):.1f} % of {wanted}" for found, wanted in (unknown, rare)]
    rouge = rouge_l(outputs, [target for _, target in pairs])
    scores = [f"{rouge:.2f}", shown(outcome, "dev", "chrF2"), shown(outcome, "dev", "BLEU")]
    return [title, f"{outcome.parameters:,}", *shares, *scores, f"{outcome.seconds:.0f} s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    add_options(parser, at_once=2)
    options = parser.parse_args()
    every = systems()
    data, valid = split(options.folder, options.out / "data")
    steps = max(1, round(load_config(RECIPE).train.steps * options.steps_scale))
    sets = (f"train.steps={steps}", f"data.valid=[{valid}]", f"data.cache={options.out / 'cache'}", *options.set)
    tests = {"dev": f"{options.folder}/dev.tsv"}
    runs = [Run(name, RECIPE, data, (*every[name][1], *sets), tests, beam=4) for name in chosen(every, options.only)]
    for run in runs:
        warm(run.config())
    outcomes = Sweep(options.out, at_once=options.at_once, minutes=options.minutes)(runs)
    counts = Counter(word for pair in open_pairs(data) for text in pair for word in words(text))
    shares = ["unknown words copied", f"words copied of those seen at most {RARE} times"]
    headings = ["system", "parameters", *shares, "ROUGE-L", "chrF2", "BLEU", "training"]
    rows = [row(each, every[each.run.name][0], options.out, options.folder, counts) for each in outcomes]
    write(options.out, "copying", f"{about()}\n\n{markdown(headings, rows)}", outcomes)
    sys.exit(any(each.error for each in outcomes))


if __name__ == "__main__":
    main()
