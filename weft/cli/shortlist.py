"""`weft shortlist`."""

from __future__ import annotations

from pathlib import Path

import typer

from weft.cli import completion
from weft.cli.output import tell


def shortlist(
    run: Path = typer.Argument(help="Folder of a trained run.", autocompletion=completion.runs),
    data: list[str] = typer.Option([], "--data", help="Pairs to count; default: the run's training data.", metavar="FILES"),
) -> None:
    """Count the likely target tokens of each source token, for faster decoding with decode.shortlist."""
    from weft.runs.open_run import build_task, run_config

    config = run_config(run).replaced({"data.valid": [], **({"data.train": data} if data else {})})
    task = build_task(config, run, tell)
    file = task.build_shortlist()
    typer.echo(f"wrote {file}; use it with --set decode.shortlist=100")
