"""`weft adapt`."""

from pathlib import Path

import typer

from weft.cli.input_and_output import tell
from weft.cli.options import ANY_SET, DEVICE, TAG, complete_runs


def adapt(
    run: Path = typer.Argument(help="Folder of a run that translates.", autocompletion=complete_runs),
    memory: list[str] = typer.Option(
        ..., "--memory", help="Corrections: a .tmx, .tsv or any other data. Repeatable; the last one counts.", metavar="FILE"
    ),
    old: list[str] = typer.Option(
        [], "--old", help="Old data, of which some is mixed in. Default: the training data of the run.", metavar="FILES"
    ),
    tag: str = TAG,
    time: str = typer.Option("10m", "--time", help="The most that training may take, such as 5m."),
    device: str = DEVICE,
    set: list[str] = ANY_SET,
) -> None:
    """Train an adapter of a run on corrections, in minutes; servers of the run switch to it by themselves.

    It is the run RUN/adapted/NUMBER. To take it back, remove that folder.
    """
    from weft.training.adapt import adapt as adapt_run

    made = adapt_run(run, memory, old=old, tag=tag, time=time, set=set, device=device, tell=tell)
    tell(
        f"\n{made.folder}: version {made.version}, from {made.corrections:,} corrections and {made.old:,} old pairs, "
        f"in {made.seconds:.0f} s"
    )
    for name, (before, after) in made.scores.items():
        tell(f"  BLEU of {name}: {before:.1f} before, {after:.1f} after")
    tell(f"  weft translate {made.folder} input.txt")
