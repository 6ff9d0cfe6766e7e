"""`weft quality data` and `weft quality calibrate`."""

from __future__ import annotations

from pathlib import Path

import typer

from weft.cli.input_and_output import tell
from weft.cli.options import ANY_SET, BEAM, DEVICE, PAIRS, recipes
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
