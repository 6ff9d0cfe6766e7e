"""Trains `auto` and the fixed recipes on data of several sizes and prints one table; the rules of `auto` were found with it.

    python benchmarks/fit.py DIR --out OUT [--sizes 500,3000] [--recipes auto,transformer-small] [--at-once 8] [--minutes 9]
    python benchmarks/fit.py DIR --out OUT --cpu 12000 --time 20m        # how good a model is after 20 minutes on this CPU
    python benchmarks/fit.py --write-rules docs/recipes.md               # writes the table of the rules into the documentation

DIR has multi30k (train and test_2016_flickr, as .en and .de) and eng_fra (train.tsv.gz and dev.tsv). Up to 29,000 pairs are
random subsets of Multi30k en-de, each contained in the next; 162,000 are of eng_fra. All systems of a size get the same pairs
and no validation data: `auto` holds some of them out, the fixed recipes train on all. The test data is only used for the final
score. Scores are BLEU (sacreBLEU 13a, cased) and chrF2 with a beam of 5. The floors copy the source, and answer every source
with the most frequent training target. The same command resumes what was interrupted.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from trainings import Outcome, Run, Sweep, add_options, frugal_settings, markdown, report, score_cell

from weft.data.formats import open_pairs
from weft.data.text_lines import read_lines
from weft.evaluation.metrics import make_metrics, score
from weft.runs.open_run import run_config
from weft.runs.run_folder import complete
from weft.training.auto import choose_settings as rules

SIZES = {500: "multi30k", 3_000: "multi30k", 12_000: "multi30k", 29_000: "multi30k", 162_000: "eng_fra"}
RECIPES = ("auto", "transformer-small", "transformer-tiny", "rnn-bahdanau")
SEED = 1
RULES = re.compile(r"(<!-- rules -->\n).*?(<!-- /rules -->)", re.DOTALL)
"""Where docs/recipes.md shows the table of the rules."""


def subset(folder: Path, size: int, out: Path) -> str:
    """Writes a random subset of `size` pairs, unless it is there; a smaller one is contained in it. Returns its files."""
    corpus, sides = SIZES[size], [out / f"{size}.source", out / f"{size}.target"]
    if not all(side.exists() for side in sides):
        train = f"{folder}/multi30k/train.en,{folder}/multi30k/train.de"
        pairs = list(open_pairs(train if corpus == "multi30k" else f"{folder}/eng_fra/train.tsv.gz"))
        chosen = np.sort(np.random.default_rng(SEED).permutation(len(pairs))[:size])
        out.mkdir(parents=True, exist_ok=True)
        for number, side in enumerate(sides):
            side.write_text("".join(f"{pairs[row][number]}\n" for row in chosen), "utf-8")
    return ",".join(map(str, sides))


def test_of(folder: Path, size: int) -> str:
    """The test pairs for models that were trained on this many pairs."""
    flickr = f"{folder}/multi30k/test_2016_flickr"
    return f"{flickr}.en,{flickr}.de" if SIZES[size] == "multi30k" else f"{folder}/eng_fra/dev.tsv"


def plan(size: int, recipe: str, options: argparse.Namespace) -> Run:
    """One run. Fixed recipes are not validated, so the moving average of the weights, or the last ones, are scored."""
    data, name = subset(options.folder, size, options.out / "data"), f"{size}-{recipe}"
    sets = [*frugal_settings(options.out), *options.set]
    if options.steps_scale != 1.0:
        sets.append("train.steps=20")
    if options.cpu:
        name, sets = f"cpu-{name}", [*sets, "train.device=cpu"]
    name += f"-{options.time}" if options.time else ""
    name += f"@{options.label}" if options.label else ""
    return Run(name, recipe, data, tuple(sets), {"test": test_of(options.folder, size)}, time=options.time)


def floors(folder: Path, size: int, out: Path) -> dict[str, dict[str, float]]:
    """Scores of two systems that have learnt nothing: the source as it is, and the most frequent training target."""
    pairs = list(open_pairs(test_of(folder, size)))
    target = subset(folder, size, out / "data").split(",")[1]
    common = Counter(read_lines(target)).most_common(1)[0][0]
    texts = {"source copied": [source for source, _ in pairs], "most frequent target": [common] * len(pairs)}
    references = [reference for _, reference in pairs]
    return {
        name: {each.name: each.value for each in score(found, references, make_metrics()).values()}
        for name, found in texts.items()
    }


def chosen(folder: Path) -> dict[str, Any]:
    """The settings of a run that a recipe or `auto` decides."""
    config = run_config(folder)
    train, model = config.train, config.model
    layers = [model.get(f"{part}_layers", "–") for part in ("encoder", "decoder")]
    return {
        "vocabulary": config.data.vocabulary,
        "width": model.get("dim"),
        "layers": f"{layers[0]}+{layers[1]}",
        "dropout": model.get("dropout"),
        "tokens per step": train.batch_tokens * train.accumulate,
        "steps": train.steps,
        "held out": config.data.hold_out,
    }


def rows_of(size: int, outcomes: list[Outcome], options: argparse.Namespace) -> list[tuple[str, ...]]:
    """The rows of a size: systems from the best to the worst, then the floors."""
    rows = []
    for each in sorted(outcomes, key=lambda outcome: -outcome.scores.get("test", {}).get("BLEU", -1.0)):
        folder = options.out / each.run.name
        values = chosen(folder) if complete(folder) else {}
        settings = ", ".join(f"{name} {value}" for name, value in values.items())
        scores = score_cell(each, "test", "BLEU"), score_cell(each, "test", "chrF2")
        minutes = f"{(each.command or each.seconds) / 60:.1f}"
        rows.append((f"{size:,}", f"`{each.run.recipe}`", *scores, minutes, f"{each.parameters / 1e6:.1f}M", settings))
    for name, scores in floors(options.folder, size, options.out).items():
        rows.append((f"{size:,}", name, f"{scores['BLEU']:.2f}", f"{scores['chrF2']:.2f}", "", "", ""))
    return rows


def verdict(size: int, outcomes: list[Outcome]) -> str:
    """How `auto` compares with the best fixed recipe."""
    found = {each.run.recipe: each.scores["test"]["BLEU"] for each in outcomes if "test" in each.scores}
    fixed = {recipe: value for recipe, value in found.items() if recipe != "auto"}
    if "auto" not in found or not fixed:
        return ""
    best = max(fixed, key=lambda recipe: fixed[recipe])
    return f"{size:,} pairs: auto {found['auto'] - fixed[best]:+.2f} BLEU against the best fixed recipe, {best}.\n"


def table(sizes: list[int], outcomes: list[Outcome], options: argparse.Namespace) -> str:
    by_size = {size: [each for each in outcomes if each.run.data == plan(size, "auto", options).data] for size in sizes}
    headings = ("pairs", "system", "BLEU", "chrF2", "minutes", "parameters", "settings")
    rows = [row for size, some in by_size.items() for row in rows_of(size, some, options)]
    verdicts = "".join(verdict(size, some) for size, some in by_size.items())
    note = f"Minutes of the whole command, with up to {options.at_once} runs sharing the device."
    return f"{markdown(headings, rows)}\n{note}\n\n{verdicts}"


def rules_table() -> str:
    """The table of the rules as Markdown."""
    dropouts = "dropout: residual, attention, feed-forward"
    lines = [("pairs", "vocabulary", "model", dropouts, "label smoothing", "tokens per step", "passes"), ("---:",) * 7]
    for row in rules.TABLE:
        shape = rules.SHAPES[row.shape]
        layers = f"{shape.layers} + {shape.layers} layers"
        model = f"`{row.shape}`: width {shape.dim}, {shape.heads} heads, feed-forward {shape.feedforward:,}, {layers}"
        dropouts = f"{row.dropout:g}, {row.attention_dropout:g}, {row.feedforward_dropout:g}"
        sizes = (f"{row.pairs:,}", f"{row.vocabulary:,}", model, dropouts)
        lines.append((*sizes, f"{row.label_smoothing:g}", f"{row.batch_tokens:,}", f"{row.passes:,}"))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write_rules(page: Path) -> None:
    """Writes the table of the rules between the marks on a page."""
    text = page.read_text("utf-8")
    page.write_text(RULES.sub(lambda match: f"{match[1]}{rules_table()}{match[2]}", text), "utf-8")


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("folder", type=Path, nargs="?", help="folder with multi30k and eng_fra")
    result.add_argument(
        "--sizes", default="", help=f"numbers of pairs, separated by commas; default: {','.join(map(str, SIZES))}"
    )
    result.add_argument("--recipes", default=",".join(RECIPES), help="recipes to train, separated by commas")
    result.add_argument("--time", default="", help="--time of every training, such as 20m")
    result.add_argument(
        "--cpu", type=int, default=0, metavar="SIZE", help="train on the CPU, on this many pairs, one at a time"
    )
    result.add_argument("--label", default="", help="suffix for names, to try settings with --set")
    result.add_argument("--write-rules", type=Path, metavar="PAGE", help="write the table of the rules into a page, and exit")
    add_options(result, at_once=8)
    return result


def main() -> None:
    options = parser().parse_args()
    if options.write_rules:
        return write_rules(options.write_rules)
    if options.folder is None:
        sys.exit("name the folder that has multi30k and eng_fra")
    sizes = [options.cpu] if options.cpu else [int(size) for size in options.sizes.split(",") if size] or list(SIZES)
    if unknown := [size for size in sizes if size not in SIZES]:
        sys.exit(f"unknown size {unknown[0]}; choose from {', '.join(map(str, SIZES))}")
    if options.cpu:
        options.at_once = 1
    recipes = options.recipes.split(",")
    # The longest trainings first, so that none of them runs alone at the end.
    runs = [plan(size, recipe, options) for size in sorted(sizes, reverse=True) for recipe in recipes]
    outcomes = Sweep(options.out, at_once=options.at_once, minutes=options.minutes)(runs)
    name = "fit" + ("-cpu" if options.cpu else "") + (f"@{options.label}" if options.label else "")
    sys.exit(report(options.out, name, table(sizes, outcomes, options), outcomes))


if __name__ == "__main__":
    main()
