"""Summaries: a pointer-generator and a Transformer that copies, the same models without copying, and the lead as the floor.

    python benchmarks/copying.py DIR --out OUT [--seeds 2] [--at-once 4] [--minutes 9] [--steps-scale 0.01] [--set …]

DIR holds train.tsv and dev.tsv: a long text, a tab, a short text. The systems are the recipes `pointer` and
`pointer-transformer`, and their base models alone, with the same words, vocabulary and steps. The last 500 pairs of train.tsv
are held out: a recipe chooses its checkpoint on them, and decodings are compared on them. dev.tsv is only scored. Cells have
one figure per seed.

ROUGE-L is the mean F1 of the longest common subsequence, lowercased; chrF2 is sacreBLEU's. The lead is the beginning of a text.
The last columns look at the words that a reference shares with its source: of those that training never had, and of those that
it had at most ten times, how many does the output have?
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from trainings import Run, add_options, markdown, report, scale_steps, select, sweep

import weft
from weft.config.sections import load_config
from weft.data.formats import open_pairs
from weft.data.tokenizers.word_character_byte import JOINED, WordTokenizer
from weft.evaluation.metrics import make_metrics, score
from weft.runs.translator import Translator

Pairs = Sequence[tuple[str, str]]

RARE, HELD_OUT, LEAD = 10, 500, 12
BEAM: dict[str, Any] = {"search": {"kind": "beam", "width": 4}}
RISK: dict[str, Any] = {"search": {"kind": "beam", "width": 16}, "rerank": {"kind": "mbr", "candidates": 16}}
DECODINGS = {"beam 4": BEAM, "16 best, minimum Bayes risk": RISK}


def systems() -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """Name → title, recipe and changes to it."""
    found: dict[str, tuple[str, str, tuple[str, ...]]] = {}
    for recipe, title in (("pointer", "pointer-generator"), ("pointer-transformer", "Transformer with copying")):
        base = yaml.safe_dump(load_config(recipe).model["base"], default_flow_style=True, width=10_000).strip()
        found |= {recipe: (title, recipe, ()), f"{recipe}-base": ("the same without copying", recipe, (f"model={base}",))}
    return found


def split(folder: Path, out: Path) -> dict[str, str]:
    """Splits the training data into two files: training, and pairs held out. Returns these and the test data."""
    lines = (folder / "train.tsv").read_text("utf-8").splitlines(keepends=True)
    out.mkdir(parents=True, exist_ok=True)
    for name, part in {"train": lines[:-HELD_OUT], "valid": lines[-HELD_OUT:]}.items():
        (out / f"{name}.tsv").write_text("".join(part), "utf-8")
    return {"train": f"{out}/train.tsv", "valid": f"{out}/valid.tsv", "dev": f"{folder}/dev.tsv"}


def lead(texts: list[str]) -> list[str]:
    return [" ".join(text.split()[:LEAD]) for text in texts]


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


class Score:
    """Scores texts: ROUGE-L on held-out data and on dev, chrF2, and the share of unseen and of rare words that are copied."""

    def __init__(self, pairs: dict[str, Pairs]) -> None:
        self.pairs = pairs
        self.counts = Counter(word for pair in pairs["train"] for text in pair for word in words(text))

    def __call__(self, write: Callable[[list[str]], list[str]]) -> list[float]:
        """write: a function from long to short texts."""
        texts = {name: write([source for source, _ in self.pairs[name]]) for name in ("valid", "dev")}
        references = {name: [target for _, target in self.pairs[name]] for name in texts}
        rouge = [rouge_l(texts[name], references[name]) for name in texts]
        chrf = score(texts["dev"], references["dev"], make_metrics(["chrf"]))["chrF2"].value
        return [*rouge, chrf, *(self._copied(texts["dev"], most) for most in (0, RARE))]

    def _copied(self, texts: list[str], most: int) -> float:
        found, count = copied(self.pairs["dev"], texts, lambda word: self.counts[word] <= most)
        return 100 * found / max(1, count)


def write(run: Translator, options: dict[str, Any], lines: list[str]) -> list[str]:
    return [each.text for each in run.stream(lines, **options)]


def rows(title: str, runs: Sequence[Path], measure: Score) -> Iterator[list[str]]:
    """A row per decoding, with a figure per run in each cell."""
    translators = [weft.load(run) for run in runs]
    for name, options in DECODINGS.items() if translators else ():
        found = [measure(partial(write, run, options)) for run in translators]
        yield [title, name, *(", ".join(f"{value:.1f}" for value in cell) for cell in zip(*found, strict=True))]


def plan(name: str, seed: int, files: dict[str, str], options: argparse.Namespace) -> Run:
    _, recipe, sets = systems()[name]
    data = (f"data.valid=[{files['valid']}]", f"data.cache={options.out / 'cache'}")
    steps = scale_steps(recipe, options.set, options.steps_scale)
    return Run(f"{name}-{seed}", recipe, files["train"], (steps, *sets, *data, *options.set, f"train.seed={seed}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    add_options(parser, at_once=4)
    options = parser.parse_args()
    files, names = split(options.folder, options.out / "data"), select(systems(), options.only)
    runs = [plan(name, seed + 1, files, options) for seed in range(options.seeds) for name in names]
    outcomes = sweep(runs, options, prepare=len(names))
    measure = Score({name: list(open_pairs(file)) for name, file in files.items()})
    table = [[f"*floor: the first {LEAD} words*", "", *(f"{value:.1f}" for value in measure(lead))]]
    for name in names:
        done = [options.out / each.run.name for each in outcomes if each.run.name[:-2] == name and not each.error]
        table += rows(systems()[name][0], done, measure)
    headings = ["system", "decoding", "ROUGE-L held out", "ROUGE-L", "chrF2", "unseen words copied, %", "rare words copied, %"]
    trained = [f"{each.run.name}: {each.parameters:,} parameters, {each.seconds:.0f} s of training\n" for each in outcomes]
    sys.exit(report(options.out, "copying", f"{markdown(headings, table)}\n{''.join(trained)}", outcomes))


if __name__ == "__main__":
    main()
