"""`weft demo`."""

from __future__ import annotations

import time
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

TRAIN, VALID, TEST = (
    "generated:dates?count=100000&seed=1",
    "generated:dates?count=500&seed=2&split=valid",
    "generated:dates?count=1000&seed=3&split=test",
)


def demo(
    out: Path = typer.Option(Path("runs/demo"), "--out", help="Folder of the run.", metavar="RUN"),
    set: list[str] = typer.Option(
        [], "--set", help="Any setting, e.g. --set train.steps=200. Repeatable.", metavar="KEY=VALUE"
    ),
) -> None:
    """Learn to read dates in dozens of languages, in a few minutes on a laptop: train, score, translate, draw the attention."""
    from weft import api
    from weft.data.formats import open_pairs
    from weft.evaluation.metrics import make_metrics, score
    from weft.explain.picture import draw_attention
    from weft.translator import load

    console = Console(highlight=False)
    began = time.monotonic()
    console.print("weft demo: dates as people write them, in many languages, to ISO dates", markup=False)
    api.train("demo-dates", data=TRAIN, valid=VALID, out=out, set=set, tell=lambda text: console.print(text, markup=False))
    translator = load(out)
    pairs = list(open_pairs(TEST))
    found = translator.translate([source for source, _ in pairs])
    texts, references = [each.text for each in found], [target for _, target in pairs]
    table = Table(title="ten dates the model has never seen", title_justify="left")
    for heading in ("read", "written", "right"):
        table.add_column(heading)
    for (source, target), text in list(zip(pairs, texts, strict=True))[:10]:
        table.add_row(source, text, "yes" if text == target else f"no: {target}")
    console.print(table)
    exact = score(texts, references, make_metrics(["exact"]))["exact"].value
    picture = out / "attention.png"
    draw_attention(translator.translate(pairs[0][0], attention=True), picture)
    console.print(
        f"exact match on {len(pairs):,} unseen dates: {exact:.1f} %  ({time.monotonic() - began:.0f} s in all)", markup=False
    )
    console.print(f"the alignment of the first one is drawn in {picture}", markup=False)
    console.print(f'try it: echo "3 mars 1999" | weft translate {out}', markup=False)
