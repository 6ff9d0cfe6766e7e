"""`weft shortlist`."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def shortlist(
    run: Path = typer.Argument(help="Folder of a trained run."),
    data: list[str] = typer.Option(
        [], "--data", help="Pairs to count; default: the run's training data.", metavar="FILES", show_default=False
    ),
) -> None:
    """Count the likely target tokens of each source token, for faster decoding with decode.shortlist."""
    from weft.config import load_config
    from weft.errors import RunError
    from weft.registry import build
    from weft.tasks.base import Setting

    if not (run / "config.yaml").is_file():
        raise RunError(f"{run}: this is not a run folder: it has no config.yaml")
    config = load_config(run / "config.yaml")
    section = config.data.model_copy(update={"valid": [], **({"train": data} if data else {})})
    config = config.model_copy(update={"data": section})
    task = build("weft.tasks:TASKS", config.task, Setting(config, run, lambda text: print(text, file=sys.stderr)), where="task")
    file = task.count_shortlist()
    typer.echo(f"wrote {file}; use it with --set decode.shortlist=100")
