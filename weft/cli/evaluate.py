"""`weft evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from weft.cli.options import decode_options, on_all_cores, runs
from weft.cli.output import opened
from weft.cli.progress import Counter

if TYPE_CHECKING:
    from weft.translator import Translator


class Test(StrEnum):
    randomisation = "randomisation"
    bootstrap = "bootstrap"


def evaluate(
    run: str = typer.Argument(help="Folder of a trained run; several, joined by commas, form an ensemble."),
    data: list[str] = typer.Option(
        ...,
        "--data",
        help="Test pairs: SOURCE,TARGET files, a .tsv or a .jsonl; of a language model, files of text. Repeatable.",
        metavar="FILES",
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
    """Score a run on test pairs: BLEU, chrF, TER (sacreBLEU), exact match, token accuracy; or, of labels, accuracy and F1.

    A language model is scored on text: loss, perplexity, bits per character. --set task.evaluation_memory=1024 and the like
    change how.
    """
    from weft.data.formats import open_pairs
    from weft.evaluation import report
    from weft.translator import load

    if _models_language(run):
        _score_text([name for name in (run, against) if name], data, device, set, as_json)
        return
    options = decode_options(set, beam=beam)
    pairs = [pair for spec in data for pair in open_pairs(spec)]
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    systems = {name: load(runs(name), device=device) for name in (run, against) if name}
    metrics = systems[run].task.metrics(tokenize=tokenize, lowercase=lowercase)
    with opened(output) if output else nullcontext() as written:
        ours = _translations(run, systems[run], sources, options)
        if written is not None:
            written.writelines(f"{' '.join(line.splitlines())}\n" for line in ours)
    baseline = report.Baseline(against, _translations(against, systems[against], sources, options)) if against else None
    found = report.evaluate(
        ours,
        references,
        system=run,
        data=" ".join(data),
        sources=sources if any(metric.name == "BLEU" for metric in metrics) else None,
        baseline=baseline,
        metrics=metrics,
        test=test.value,
        samples=samples,
    )
    if as_json:
        typer.echo(json.dumps(found.document(), indent=2, ensure_ascii=False))
    else:
        Console().print(found.table())


def _models_language(run: str) -> bool:
    from weft.config.sections import load_config

    settings = Path(run) / "config.yaml"
    return settings.is_file() and load_config(settings).task["kind"] == "language_model"


def _score_text(names: Sequence[str], data: Sequence[str], device: str, sets: Sequence[str], as_json: bool) -> None:
    from weft.generator import load_generator

    scores = {name: load_generator(name, device=device, set=sets).score(data) for name in names}
    if as_json:
        typer.echo(json.dumps({"data": " ".join(data), "scores": scores}, indent=2, ensure_ascii=False))
        return
    table = Table(title=f"scores on {' '.join(data)}", title_justify="left")
    for heading in ("run", *(name.replace("_", " ") for name in next(iter(scores.values())))):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for name, values in scores.items():
        table.add_row(name, *(f"{value:.4f}" for value in values.values()))
    Console().print(table)


def _translations(name: str, translator: Translator, sources: Sequence[str], options: dict[str, Any]) -> list[str]:
    found = []
    with Counter(f"{name}: translated", "sentences", total=len(sources)) as counter:
        for translation in translator.stream(sources, **on_all_cores(translator, options)):
            found.append(translation.text)
            counter.advance()
    return found
