"""`weft shortlist`."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def shortlist(
    run: Path = typer.Argument(help="Folder of a trained run."),
    data: list[str] = typer.Option(
        [], "--data", help="Pairs to count in; default: the run's training data.", metavar="FILES", show_default=False
    ),
) -> None:
    """Count which target tokens go with which source tokens, for faster decoding with decode.shortlist."""
    from weft.errors import ConfigError
    from weft.runs.opening import build_task, run_config
    from weft.tasks.translation import TranslationTask

    config = run_config(run).replaced({"data.valid": [], **({"data.train": data} if data else {})})
    task = build_task(config, run, lambda text: print(text, file=sys.stderr))
    if not isinstance(task, TranslationTask):
        raise ConfigError(f"{run}: its task is {config.task['kind']}; only translation has a shortlist")
    file = task.count_shortlist()
    typer.echo(f"{file} is written; use it with --set decode.shortlist=100")
