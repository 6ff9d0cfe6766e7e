"""`weft iterate`."""

from __future__ import annotations

from pathlib import Path

import typer

from weft.cli import completion
from weft.cli.options import ANY_SET, PAIRS
from weft.cli.output import tell


def iterate(
    recipe: str = typer.Argument(help="A recipe or a YAML file, for all runs.", autocompletion=completion.recipes),
    data: list[str] = typer.Option(..., "--data", help=f"Training pairs: {PAIRS}. Repeatable.", metavar="FILES"),
    valid: list[str] = typer.Option(..., "--valid", help="Validation pairs, in the same forms. Repeatable.", metavar="FILES"),
    target_text: list[str] = typer.Option([], "--target-text", help="File with text of the target language.", metavar="FILE"),
    source_text: list[str] = typer.Option([], "--source-text", help="File with text of the source language.", metavar="FILE"),
    rounds: int = typer.Option(2, "--rounds", min=1, help="Rounds of back-translation after the first models."),
    out: Path = typer.Option(..., "--out", help="Folder for all runs."),
    set: list[str] = ANY_SET,
) -> None:
    """Train models of both directions that translate text for each other, in rounds; the best of each stays.

    OUT/forward and OUT/backward are the best runs by train.best_by, or by BLEU if that is the loss; OUT/rounds.json has all
    scores. The same command continues after an interruption. --set changes all runs; decode settings apply to translating the
    text as well.
    """
    from weft.training.iterative_backtranslation import BacktranslationData, iterate_backtranslation

    mono = {"forward": target_text, "backward": source_text}
    best = iterate_backtranslation(BacktranslationData(recipe, data, valid, mono, rounds, out, set), tell)
    for direction, run in best.items():
        tell(f"best {direction} model: {run}")
