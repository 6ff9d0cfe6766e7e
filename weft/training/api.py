"""The Python interface for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.config import yaml_document
from weft.config.corpus_entries import parse
from weft.config.sections import Config, load_config
from weft.errors import ConfigError
from weft.runs.open_run import run_config
from weft.runs.run_folder import CONFIG
from weft.runs.warm_start import started_config
from weft.training.auto.auto_recipe import AUTO, chooser, seconds_of
from weft.training.session import Result
from weft.training.train_run import train_run


def train(
    recipe: str | Path | Config | None = None,
    *,
    start: str | Path | None = None,
    data: str | Sequence[str | Mapping[str, Any]] = (),
    valid: str | Sequence[str | Mapping[str, Any]] = (),
    out: str | Path | None = None,
    time: str | float | None = None,
    teacher: str | Path | None = None,
    resume: bool = False,
    set: Mapping[str, Any] | Sequence[str] = (),
    tell: Callable[[str], None] = lambda message: None,
) -> Result:
    """Trains a model in the run folder `out` and returns the result.

    `recipe` is the name of a recipe, a YAML file or a `Config`; "auto", the default, chooses all sizes from the data. `start`
    is a run to fine-tune: the new run takes its model, tokenizers and weights, and everything else from the recipe, by default
    the configuration of that run. With `resume`, `out` is the run to continue. `time` is how long the whole call may take:
    "20m", "1h30m", or seconds. `teacher` is a run whose translations replace the targets of `data`. `set` overrides settings
    like `--set`: {"train.steps": 500} or ["train.steps=500"]. `tell` receives messages before training starts.
    """
    seconds = seconds_of(time)
    sets = [f"{key}={yaml_document.scalar(value)}" for key, value in set.items()] if isinstance(set, Mapping) else list(set)
    if resume:
        if out is None:
            raise ConfigError("`resume` needs `out`, the folder of the run to continue")
        if seconds is not None:
            raise ConfigError("--time plans a new run; to end a resumed one earlier, set train.seconds, its total time")
        config = run_config(Path(out), sets)
    elif start is not None:
        if isinstance(recipe, Config) or recipe == AUTO:
            raise ConfigError(
                "a run that starts from another one needs a recipe with a name, or a YAML file; auto chooses a model"
            )
        config = started_config(Path(start), recipe, sets, new_data=bool(data))
        recipe = recipe or Path(start) / CONFIG
    elif isinstance(recipe, Config):
        config = recipe
        if sets:
            raise ConfigError("`set` is for recipes and files; use Config.replaced instead")
    else:
        recipe = AUTO if recipe is None else recipe
        config = load_config(recipe, sets)
    given = {("data.train", "--data"): data, ("data.valid", "--valid"): valid}
    listed = {key: [some] if isinstance(some, str) else some for key, some in given.items() if some}
    config = config.replaced({path: [parse(each, option) for each in some] for (path, option), some in listed.items()})
    if teacher is not None:
        config = config.replaced({"data.teacher": str(teacher)})
    choose = None if resume else chooser(recipe == AUTO, sets, seconds, tell)
    return train_run(config, Path(out) if out else free_folder(recipe or AUTO), resume=resume, tell=tell, choose=choose)


def free_folder(recipe: str | Path | Config, base: str | Path = "runs") -> Path:
    """A folder for a new run, named after the recipe or file, with a number if that folder exists."""
    path = Path("run" if isinstance(recipe, Config) else recipe)
    name = path.parent.name if path.name == "config.yaml" and path.parent.name else path.stem
    folder, number = Path(base) / name, 2
    while folder.exists():
        folder, number = Path(base) / f"{name}-{number}", number + 1
    return folder
