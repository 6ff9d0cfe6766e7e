"""Training from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.config import Config, load_config
from weft.errors import ConfigError
from weft.training.run import train_run
from weft.training.session import Result


def train(
    recipe: str | Path | Config = "transformer-small",
    *,
    data: str | Sequence[str] = (),
    valid: str | Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    set: Mapping[str, Any] | Sequence[str] = (),
    tell: Callable[[str], None] = lambda message: None,
) -> Result:
    """Trains a model into the run folder `out` and returns how training ended.

    `recipe` is the name of a recipe, a YAML file or a `Config`. With `resume`, `out` is the run to continue. `set` changes
    settings, as `--set` does: {"train.steps": 500} or ["train.steps=500"]. `tell` receives messages before training begins.
    """
    sets = [f"{key}={_yaml(value)}" for key, value in set.items()] if isinstance(set, Mapping) else list(set)
    if resume:
        if out is None:
            raise ConfigError("`out` is missing: name the run to continue")
        config = load_config(Path(out) / "config.yaml", sets)
    elif isinstance(recipe, Config):
        config = recipe.model_copy(deep=True)
        if sets:
            raise ConfigError("`set` is for recipes and files; change the Config itself")
    else:
        config = load_config(recipe, sets)
    if data:
        config.data.train = [data] if isinstance(data, str) else list(data)
    if valid:
        config.data.valid = [valid] if isinstance(valid, str) else list(valid)
    return train_run(config, Path(out) if out else free_folder(recipe), resume=resume, tell=tell)


def free_folder(recipe: str | Path | Config, base: str | Path = "runs") -> Path:
    """A folder for a new run, named after the recipe or file, with a number if the name is taken."""
    path = Path("run" if isinstance(recipe, Config) else recipe)
    name = path.parent.name if path.name == "config.yaml" and path.parent.name else path.stem
    folder, number = Path(base) / name, 2
    while folder.exists():
        folder, number = Path(base) / f"{name}-{number}", number + 1
    return folder


def _yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, default_flow_style=True, allow_unicode=True)).removesuffix("...\n").strip()
