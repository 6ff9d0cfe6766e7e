"""`weft evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from weft.cli.options import decode_options
from weft.cli.progress import Counter


class Test(StrEnum):
    randomisation = "randomisation"
    bootstrap = "bootstrap"


def evaluate(
    run: str = typer.Argument(help="Folder of a trained run; several, joined by commas, form an ensemble."),
    data: list[str] = typer.Option(
        ..., "--data", help="Test pairs: SOURCE,TARGET files, a .tsv or a .jsonl. Repeatable.", metavar="FILES"
    ),
    against: str = typer.Option(
        None, "--against", help="Another run to compare with, with a test of significance.", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="A JSON document instead of a table."),
    output: Path = typer.Option(None, "-o", "--output", help="Also write the translations here.", show_default=False),
    beam: int = typer.Option(None, "--beam", help="Beam size; 1 is greedy.", show_default=False),
    tokenize: str = typer.Option("13a", "--tokenize", help="sacreBLEU's tokenizer for BLEU: 13a, zh, ja-mecab, char, …"),
    lowercase: bool = typer.Option(False, "--lowercase", help="Score without regard to case."),
    test: Test = typer.Option(Test.randomisation, "--test", help="Test of significance."),
    samples: int = typer.Option(1000, "--samples", help="Resamples for intervals and tests."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1, …"),
    set: list[str] = typer.Option([], "--set", help="Any setting of decoding, e.g. --set decode.beam=5.", metavar="KEY=VALUE"),
) -> None:
    """Score a run on test pairs: BLEU, chrF, TER (sacreBLEU), exact match, token accuracy; against another run if wanted."""
    from weft.data.formats import open_pairs
    from weft.evaluation import report
    from weft.evaluation.metrics import make_metrics

    metrics = make_metrics(tokenize=tokenize, lowercase=lowercase)
    options = decode_options(set, beam=beam)
    pairs = [pair for spec in data for pair in open_pairs(spec)]
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    ours = _translations(run, sources, device, options)
    if output is not None:
        output.write_text("".join(f"{line}\n" for line in ours), encoding="utf-8")
    baseline = report.Baseline(against, _translations(against, sources, device, options)) if against else None
    found = report.evaluate(
        ours,
        references,
        system=run,
        data=" ".join(data),
        sources=sources,
        baseline=baseline,
        metrics=metrics,
        test=test.value,
        samples=samples,
    )
    if as_json:
        typer.echo(json.dumps(found.document(), indent=2, ensure_ascii=False))
    else:
        Console().print(found.table())


def _translations(run: str, sources: Sequence[str], device: str, options: dict[str, Any]) -> list[str]:
    from weft.translator import load

    found = []
    with Counter(f"{run}: translated", "sentences", total=len(sources)) as counter:
        for translation in load(run.split(","), device=device).stream(sources, **options):
            found.append(translation.text)
            counter.advance()
    return found
