"""`weft quality data` and `weft quality calibrate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from weft.cli.input_and_output import tell
from weft.cli.options import ANY_SET, BEAM, DEVICE, PAIRS, RUN, recipes
from weft.errors import ConfigError

OUT = typer.Option(..., "-o", "--out", help="File for the labelled translations; ends in .jsonl.", metavar="FILE")


def data(
    recipe: str = typer.Argument(None, help="Recipe or YAML file of the models that translate.", autocompletion=recipes),
    data: list[str] = typer.Option(..., help=f"Pairs: {PAIRS}. Repeatable.", metavar="FILES"),
    valid: list[str] = typer.Option([], help="Validation pairs for the models. Repeatable.", metavar="FILES"),
    out: Path = OUT,
    folds: int = typer.Option(2, help="Parts of the data; each is translated by a model trained on the others.", metavar="N"),
    run: Path = typer.Option(
        None, help="Translate pairs that this run has not seen, in place of training models.", metavar="RUN"
    ),
    time: str = typer.Option(None, help="Time for training each model, such as 20m.", metavar="TIME"),
    beam: int = BEAM,
    device: str = DEVICE,
    set: list[str] = ANY_SET,
) -> None:
    """Make training data for quality estimation: translations, their chrF, and whether each word is OK or BAD.

    Each part of the data is translated by a model that was trained on the other parts. Continues where an earlier call was
    interrupted.
    """
    from weft.training.cross_fitting import CrossFitting, label_corpus, make_quality_data

    options = {} if beam is None else {"beam": beam}
    if run is not None:
        if recipe or valid or time or set:
            raise ConfigError("--run names a trained model; leave the recipe, --valid, --time and --set out")
        count = label_corpus(run, data, out, device=device, options=options, report=tell)
    else:
        if recipe is None:
            raise ConfigError("name a recipe for the models that translate, or a trained one with --run RUN")
        plan = CrossFitting(recipe, data, valid, out, folds, set, time, options, device)
        count = make_quality_data(plan, tell)
    tell(f"{out}: {count:,} translations with labels")


def calibrate(
    run: str = RUN,
    data: list[str] = typer.Option(..., help="Labelled translations that the run was not trained on.", metavar="FILES"),
    test: list[str] = typer.Option([], help="Others, for the report; default: the same.", metavar="FILES"),
    as_json: bool = typer.Option(False, "--json", help="The report as a JSON document."),
    device: str = DEVICE,
) -> None:
    """Learn what the estimates of a run of the task quality mean, and report how good they are.

    Writes RUN/calibration.json, which all later predictions use, and the picture RUN/reliability.png.
    """
    from weft.runs import quality_calibration

    quality_calibration.calibrate(run, data, device)
    document = quality_calibration.report(quality_calibration.estimate(run, test or data, device))
    picture = Path(run) / quality_calibration.PICTURE
    quality_calibration.draw_reliability(document, picture)
    if as_json:
        typer.echo(json.dumps(document, ensure_ascii=False, indent=1))
    else:
        _print_report(document)
        tell(f"{picture}: confidence and truth")


def _print_report(document: dict[str, Any]) -> None:
    worst = f"worst {100 * document['worst_share']:.0f} % found"
    typer.echo(f"{document['translations']:,} translations")
    typer.echo(f"{'':36}{'Pearson':>9}{'Spearman':>10}{worst:>18}")
    for name, each in document["estimators"].items():
        typer.echo(f"{name:36}{100 * each['pearson']:9.1f}{100 * each['spearman']:10.1f}{100 * each['worst_found']:17.1f}%")
    for name in ("sentences", "words"):
        if found := document.get(name):
            typer.echo(f"{name}: calibration error {found['error']:.3f}, before calibration {found['error_before']:.3f}")
    if found := document.get("words"):
        typer.echo(f"words: MCC {100 * found['mcc']:.1f}, {100 * found['right']:.1f} % of {found['count']:,} are OK")
