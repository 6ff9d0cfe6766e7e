"""`weft train`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import typer

from weft.errors import ConfigError


def train(
    recipe: str = typer.Argument(None, help="A recipe (see `weft list recipes`) or a YAML file.", show_default=False),
    data: list[str] = typer.Option(
        [],
        "--data",
        help="Training pairs: SOURCE,TARGET text files, a .tsv or a .jsonl, each also .gz; or, for language models, texts.",
        metavar="FILES",
    ),
    valid: list[str] = typer.Option([], "--valid", help="Validation pairs, in the same forms. Repeatable.", metavar="FILES"),
    out: Path = typer.Option(None, "--out", help="Folder of the run. Default: runs/NAME.", show_default=False),
    resume: Path = typer.Option(
        None, "--resume", help="Go on with this run, exactly where it was.", metavar="RUN", show_default=False
    ),
    set: list[str] = typer.Option(
        [], "--set", help="Any setting, e.g. --set train.steps=2000. Repeatable.", metavar="KEY=VALUE"
    ),
) -> None:
    """Train a model: from a recipe or a file of settings, on pairs of your own."""
    from weft import api
    from weft.runs.opening import run_config

    if (recipe is None) == (resume is None):
        raise ConfigError(
            "name a recipe or a YAML file to train, or a run to --resume (one of the two); `weft list recipes` shows recipes"
        )
    if resume is not None and out is not None:
        raise ConfigError("--resume goes on in the run's own folder; leave --out away")
    folder = resume or out or api.free_folder(recipe)
    result = api.train(recipe or "", data=data, valid=valid, out=folder, resume=resume is not None, set=set, tell=_tell)
    if os.environ.get("RANK", "0") != "0":
        return  # one of several processes; the first speaks for all
    _tell(f"\ndone: step {result.update:,}, {result.weights} weights in {folder}/model.safetensors")
    name = shlex.quote(str(folder))
    if run_config(folder).task["kind"] == "language_model":
        _tell(f'  weft generate {name} "a beginning"')
        _tell(f"  weft evaluate {name} --data TEXT")
    else:
        _tell(f'  echo "a sentence" | weft translate {name}')
        _tell(f"  weft evaluate {name} --data SOURCE,TARGET")
    _tell(f"  weft train --resume {name} --set train.steps={2 * result.update}")


def _tell(message: str) -> None:
    # Not through rich, which would break long lines: commands are there to be copied.
    typer.echo(message, err=True)
