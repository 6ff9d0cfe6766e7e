"""`weft demo`."""

from __future__ import annotations

import time
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from weft.cli.options import ANY_SET

TRAIN, VALID, TEST = (
    "generated:dates?count=100000&seed=1",
    "generated:dates?count=500&seed=2&split=valid",
    "generated:dates?count=1000&seed=3&split=test",
)


def demo(
    out: Path = typer.Option(None, "--out", help="Folder of the run. Default: runs/demo.", metavar="RUN"),
    set: list[str] = ANY_SET,
) -> None:
    """Train a model that reads dates in dozens of languages, in a few minutes on a laptop; evaluate it; draw its attention."""
    from weft.data.formats import open_pairs
    from weft.data.generators import LANGUAGES
    from weft.explain.attention_heatmap import draw_attention
    from weft.explain.figures import can_draw
    from weft.runs.translator import load
    from weft.training.train_run import free_folder
    from weft.training.train_run import train as train_run

    began = time.monotonic()
    out = out or free_folder("demo")
    typer.echo(f"weft demo: dates as people write them in {len(LANGUAGES)} languages, converted to ISO dates")
    train_run("demo-dates", data=TRAIN, valid=VALID, out=out, set=set, tell=typer.echo)
    translator = load(out)
    pairs = list(open_pairs(TEST))
    translations = translator.translate([source for source, _ in pairs])
    texts, references = [each.text for each in translations], [target for _, target in pairs]
    table = Table("read", "written", "right", title="ten dates the model has never seen", title_justify="left")
    for (source, target), text in list(zip(pairs, texts, strict=True))[:10]:
        table.add_row(source, text, "yes" if text == target else f"no: {target}")
    Console(highlight=False).print(table)
    exact = 100 * sum(text == reference for text, reference in zip(texts, references, strict=True)) / len(pairs)
    typer.echo(f"exact match on {len(pairs):,} unseen dates: {exact:.1f} %  ({time.monotonic() - began:.0f} s in all)")
    drawn = next(source for source, _ in pairs if source.isascii() and len(source) > 15)
    if can_draw():
        draw_attention(translator.translate(drawn, attention=True), out / "attention.png")
        typer.echo(f'the attention for "{drawn}" is drawn in {out / "attention.png"}')
    typer.echo(f'try it: weft translate {out} "3 mars 1999"')
