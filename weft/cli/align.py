"""`weft align`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Column, Table

from weft.cli.options import DEVICE, OUTPUT, PAIRS, RUN, runs
from weft.cli.output import Counter, opened, tell, write_line
from weft.errors import ConfigError, DataError

if TYPE_CHECKING:
    from weft.explain.explanation import AttentionMap
    from weft.tasks.translation.predictor import TranslationPredictor
    from weft.tasks.translation.word_alignment import Agreement, Gold, Link


def align(
    run: str = RUN,
    data: str = typer.Option(..., help=f"Pairs to align: {PAIRS}.", metavar="FILES"),
    gold: Path = typer.Option(None, help="File with gold links, one line per pair: 3-5 sure, 3p5 possible."),
    layer: int = typer.Option(
        None, help="The layer whose links are written, counted from 1; default: the last but one, or the only one."
    ),
    output: Path = OUTPUT,
    as_json: bool = typer.Option(False, "--json", help="Scores as a JSON document on standard error."),
    device: str = DEVICE,
) -> None:
    """Align the words of pairs by the model's attention, in Pharaoh format: `i-j` for source word i and target word j, from 0.

    Words are separated by spaces. With --gold, prints the alignment error rate (AER) of every layer.
    """
    from weft.data.formats import open_pairs
    from weft.runs.translator import load
    from weft.tasks.translation.attention_alignment import usual_layer
    from weft.tasks.translation.word_alignment import agreement, pharaoh

    pairs = list(open_pairs(data))
    wanted = None if gold is None else _gold(gold, len(pairs))
    predictor = load(runs(run), device=device).translation_predictor("align")
    rows: list[list[tuple[AttentionMap, set[Link]]]] = []
    names: list[str] = []
    with opened(output) as target, Counter("aligned", "pairs", shown=output is not None, total=len(pairs)) as counter:
        for layers in _aligned(predictor, pairs, data):
            rows.append(layers)
            names = names or [f"{attention.title} ({attention.kind}, {attention.how})" for attention, _ in layers]
            chosen = usual_layer(len(layers)) if layer is None else layer - 1
            if layers and not 0 <= chosen < len(layers):
                raise ConfigError(f"--layer {layer}: {len(layers)} layers attend to the source, counted from 1")
            write_line(target, pharaoh(layers[chosen][1]) if layers else "")
            counter.advance()
    if wanted is not None:
        _show({name: agreement([row[k][1] if row else set() for row in rows], wanted) for k, name in enumerate(names)}, as_json)


def _aligned(
    predictor: TranslationPredictor, pairs: list[tuple[str, str]], data: str
) -> Iterator[list[tuple[AttentionMap, set[Link]]]]:
    """The links of each layer for every pair; none if a side is blank."""
    from weft.tasks.translation.word_alignment import align

    for number, (source, written) in enumerate(pairs, start=1):
        try:
            yield align(predictor, source, written) if source.strip() and written.strip() else []
        except DataError as error:
            raise DataError(f"{data}, pair {number:,}: {error}") from None


def _gold(file: Path, count: int) -> list[Gold]:
    from weft.data.text_lines import read_lines
    from weft.tasks.translation.word_alignment import parse_gold

    links = [parse_gold(line, f"{file}, line {number:,}") for number, line in enumerate(read_lines(file), start=1)]
    if len(links) != count:
        raise DataError(f"{file} has {len(links):,} lines, and there are {count:,} pairs; there must be one for each")
    return links


def _show(scores: dict[str, Agreement], as_json: bool) -> None:
    if as_json:
        tell(json.dumps({name: asdict(each) for name, each in scores.items()}, indent=2))
        return
    numbers = (Column(heading, justify="right") for heading in ("AER", "precision", "recall"))
    table = Table("layer", *numbers, title="agreement with gold links", title_justify="left")
    for name, each in scores.items():
        table.add_row(name, *(f"{value:.4f}" for value in (each.aer, each.precision, each.recall)))
    Console(stderr=True).print(table)
