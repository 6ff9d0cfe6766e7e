"""BLEU by source length: a fixed context falls off, attention does not (Bahdanau et al. 2015, figure 2).

    python benchmarks/lengths.py DIR --out OUT [--at-once 5] [--image lengths.png]      train, score, draw
    python benchmarks/lengths.py OUT/lengths-curves.json --image lengths.png            draw again

DIR holds Multi30k en-de, whose sentences have 13 words on average. Longer sources join one to four consecutive sentences, in
training and test alike. No length is new to any model, and every test contains the same thousand sentences, so tests differ
only in how much has to be remembered at a time. The budget is that of families.py. If OUT has the runs of families.py too, the
left panel shows them on the original sentences.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from families import SYSTEMS, pairs, plan, within_budget
from trainings import about, add_options, markdown, report, select, sweep

from weft.data.formats import open_pairs
from weft.data.text_lines import read_lines
from weft.evaluation.metrics import by_length

LABEL = "@joined"
JOINED = (1, 2, 3, 4)
NAMES = {
    "fixed-lstm": "fixed context, LSTM",
    "fixed-gru": "fixed context, GRU",
    "bahdanau": "additive attention",
    "luong-general": "Luong attention",
    "transformer": "Transformer",
}
COLOURS = {
    "fixed-lstm": "#d55e00",
    "fixed-gru": "#e69f00",
    "bahdanau": "#0072b2",
    "luong-general": "#56b4e9",
    "transformer": "#555555",
}
PLAIN_EDGES, JOINED_EDGES = (9, 12, 15, 18), (10, 20, 30, 40, 50)
Curve = list[dict[str, Any]]


def join(folder: Path, split: str, counts: Sequence[int], out: Path) -> str:
    """Writes the pairs of a split joined in groups of `counts[0]`, then of `counts[1]`, and so on. Drops incomplete groups."""
    lines = list(open_pairs(pairs(folder, split)))
    groups = [lines[at : at + count] for count in counts for at in range(0, len(lines) - count + 1, count)]
    out.mkdir(parents=True, exist_ok=True)
    name = out / f"{split}-{'-'.join(map(str, counts))}"
    for side, end in enumerate(("en", "de")):
        text = "".join(f"{' '.join(pair[side] for pair in group)}\n" for group in groups)
        name.with_name(f"{name.name}.{end}").write_text(text, "utf-8")
    return f"{name}.en,{name}.de"


def curve(out: Path, run: str, tests: dict[str, str], edges: Sequence[int]) -> Curve:
    """BLEU of a run over all `tests` together, by source length in words."""
    outputs, sources, references = [], [], []
    for test, spec in tests.items():
        outputs += read_lines(str(out / "texts" / f"{run}.{test}.txt"))
        for source, target in open_pairs(spec):
            sources.append(source)
            references.append(target)
    buckets = by_length(outputs, references, sources, edges)
    words = [[len(s.split()) for s in sources if b.low <= len(s.split()) < (b.high or sys.maxsize)] for b in buckets]
    return [
        {"from": b.low, "below": b.high, "words": sum(each) / len(each), "sentences": b.sentences, "bleu": b.bleu}
        for b, each in zip(buckets, words, strict=True)
        if each
    ]


def table(curves: dict[str, Curve], headings: str) -> str:
    """Markdown, with one row per bucket."""
    if not curves:
        return ""
    rows = []
    for bucket in zip(*curves.values(), strict=True):
        first = bucket[0]
        words = f"{first['from']} and more" if first["below"] is None else f"{first['from']} to {first['below'] - 1}"
        rows.append([words, str(first["sentences"]), *(f"{each['bleu']:.2f}" for each in bucket)])
    return f"{headings}\n\n{markdown(['words', 'sources', *(f'`{name}`' for name in curves)], rows)}\n"


def draw(figures: dict[str, Any], image: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [(title, figures[key]) for key, title in PANELS.items() if figures.get(key)]
    figure = Figure(figsize=(1 + 4.2 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, curves) in zip(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True):
        for name, points in curves.items():
            style = "--" if name.startswith("fixed") else "-"
            words, bleu = [point["words"] for point in points], [point["bleu"] for point in points]
            axes.plot(words, bleu, style, marker="o", markersize=4, color=COLOURS[name], label=NAMES[name])
        for point in next(iter(curves.values())):
            axes.annotate(f"{point['sentences']}", (point["words"], 0), ha="center", va="bottom", fontsize=7, color="#777777")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("source length in words (small: number of sources)")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    best = max(point["bleu"] for _, curves in panels for points in curves.values() for point in points)
    figure.axes[0].set(ylabel="BLEU", ylim=(0, 1.1 * best + 1))
    figure.axes[-1].legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 0.06))
    image.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(image, dpi=110)
    print(f"picture written to {image}")


PANELS = {"plain": "Multi30k, single sentences", "joined": "one to four sentences joined, in training and test"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of Multi30k, or the curves of an earlier call to draw again")
    parser.add_argument("--image", type=Path, help="path of the picture (default: OUT/lengths.png)")
    add_options(parser, at_once=5)
    options = parser.parse_args()
    options.image = options.image or options.out / "lengths.png"
    if options.folder.suffix == ".json":
        draw(json.loads(options.folder.read_text("utf-8")), options.image)
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    out, names = options.out, select({name: SYSTEMS[name] for name in NAMES}, options.only)
    train = join(options.folder, "train", JOINED, out / "data")
    tests = {f"joined{count}": join(options.folder, "test_2016_flickr", [count], out / "data") for count in JOINED}
    runs = [plan(name, train, tests, options, LABEL) for name in names]
    for run in runs:
        within_budget(run)
    outcomes = sweep(runs, options)
    done = [name for name, each in zip(names, outcomes, strict=True) if not each.error]
    plain = {"test": pairs(options.folder, "test_2016_flickr")}
    swept = [name for name in names if (out / "scores" / f"{name}.test.json").exists()]
    figures = {
        "about": about(),
        "plain": {name: curve(out, name, plain, PLAIN_EDGES) for name in swept},
        "joined": {name: curve(out, name + LABEL, tests, JOINED_EDGES) for name in done},
    }
    text = "".join(table(figures[key], title) for key, title in PANELS.items())
    failed = report(out, "lengths", text, outcomes)
    (out / "lengths-curves.json").write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    if done or swept:
        draw(figures, options.image)
    sys.exit(failed)


if __name__ == "__main__":
    main()
