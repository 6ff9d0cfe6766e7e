"""`weft train`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from weft import cli
from weft.cli.input_and_output import tell
from weft.cli.options import ANY_SET, PAIRS, complete_runs, recipes
from weft.config.registry import find_table, load
from weft.errors import ConfigError

if TYPE_CHECKING:
    from weft.config.sections import Config

FROM = (
    "Fine-tune this run: take its model, tokenizers and weights, and everything else from the recipe, or from its own "
    "configuration if there is no recipe."
)
TEACHER = "Train on the translations of this run instead of the targets (sequence distillation)."


def train(
    recipe: str = typer.Argument(
        None,
        help="A recipe (see `weft list recipes`) or a YAML file. Default: auto, which chooses all sizes from the data.",
        autocompletion=recipes,
    ),
    data: list[str] = typer.Option(
        [],
        "--data",
        help=f"Training pairs: {PAIRS}; for language models, text files. Repeatable.",
        metavar="FILES",
    ),
    valid: list[str] = typer.Option([], "--valid", help="Validation pairs, in the same forms. Repeatable.", metavar="FILES"),
    out: Path = typer.Option(None, "--out", help="Folder of the run. Default: runs/NAME."),
    time: str = typer.Option(
        None, "--time", help="How long the whole command may take, such as 20m or 1h30m; sets the number of steps."
    ),
    start: Path = typer.Option(None, "--from", help=FROM, metavar="RUN", autocompletion=complete_runs),
    teacher: Path = typer.Option(None, "--teacher", help=TEACHER, metavar="RUN", autocompletion=complete_runs),
    resume: Path = typer.Option(
        None,
        "--resume",
        help="Continue this run exactly where it stopped.",
        metavar="RUN",
        autocompletion=complete_runs,
    ),
    clean: bool = typer.Option(
        True, "--clean/--no-clean", help="For auto: leave out flawed pairs, as `weft data clean` does, if a sample has many."
    ),
    set: list[str] = ANY_SET,
) -> None:
    """Train a model from a recipe or a configuration file, on your own data."""
    if recipe is None and resume is None and start is None and data:
        recipe = "auto"
    if (recipe is None and start is None) == (resume is None):
        raise ConfigError(
            "name a recipe or a YAML file to train, or give --data alone to train `auto`; or a run to start --from; or a run "
            "to --resume (one of these). `weft list recipes` shows recipes"
        )
    if resume is not None and out is not None:
        raise ConfigError("--resume continues in the run's own folder; remove --out")
    if recipe is not None and Path(recipe).is_file() and Path(recipe).suffix not in (".yaml", ".yml"):
        command = f"weft train auto --data {shlex.quote(recipe)}"
        raise ConfigError(f"{recipe}: this is neither a recipe nor a YAML file; data comes after --data, as in {command}")
    if os.environ.get("RANK", "0") == "0":
        tell("starting: loading PyTorch, then reading the data")
    from weft.runs.open_run import run_config
    from weft.training.time_budget import count_from_process_start
    from weft.training.train_run import free_folder
    from weft.training.train_run import train as train_run

    if cli.OWN_PROCESS:
        count_from_process_start()
    folder = resume or out or free_folder(recipe or start / "config.yaml")
    options = {
        "data": data,
        "valid": valid,
        "out": folder,
        "time": time,
        "resume": resume is not None,
        "set": set,
        "clean": clean,
    }
    result = train_run(recipe, start=start, teacher=teacher, tell=tell, **options)
    if os.environ.get("RANK", "0") != "0":
        return  # one of several processes; only the first reports
    tell(f"\ndone: step {result.update:,}, {result.weights} weights in {folder}/model.safetensors")
    _suggest(folder, run_config(folder), result.update)


def _suggest(folder: Path, config: Config, steps: int) -> None:
    """Shows the commands that use a run, and the one that trains it further."""
    from weft.config.corpus_entries import weighed

    name = shlex.quote(str(folder))
    tags = [corpus.tag for corpus in weighed(config.data.train)]
    tag = f" --tag {shlex.quote(tags[-1] or '')}" if tags and all(tags) else ""
    for command in load(find_table("weft.tasks:TASKS"), config.task["kind"]).info.commands:
        tell(f"  {command.format(run=name)}{tag}")
    more = "--time 10m" if config.train.budget == "time" else f"--set train.steps={2 * steps}"
    tell(f"  weft train --resume {name} {more}")
