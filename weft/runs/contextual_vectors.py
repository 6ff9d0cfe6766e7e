"""A run whose frontend is `contextual`: the language model that it names, its tokenizer and its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.config.sections import Config
from weft.errors import ConfigError
from weft.models.base import Network
from weft.models.frontends.contextual import ContextualFrontend
from weft.runs.open_run import open_run, run_config

KIND = "contextual"


def resolve_contextual(config: Config) -> Config:
    """`config` with the model and the tokenizer of the language model that its frontend names."""
    run = _named(config)
    if run is None:
        return config
    if config.data.tokenizer_of and Path(config.data.tokenizer_of).absolute() != run:
        raise ConfigError(
            f"data.tokenizer_of: {config.data.tokenizer_of}: the language model of model.front.run reads the tokens of its own "
            "run; remove this setting"
        )
    model: dict[str, Any] = run_config(run).model
    return config.replaced(
        {"model.front.run": str(run), "model.front.language_model": dict(model), "data.tokenizer_of": str(run)}
    )


def start_contextual(model: Network, config: Config) -> list[str]:
    """Gives the frontend of a new model the weights of its language model, and says so."""
    run = _named(config)
    if run is None:
        return []
    weights = open_run(run).model.state_dict()
    for part in model.modules():
        if isinstance(part, ContextualFrontend):
            part.language_model.load_state_dict(weights)
    return [f"from {run}: the language model, which stays as it is"]


def forget_contextual(config: Config) -> dict[str, Any]:
    """The change that removes the place of the language model, whose weights a trained run has itself."""
    return {} if _named(config) is None else {"model.front.run": None}


def _named(config: Config) -> Path | None:
    """The run that model.front.run names, if the frontend is contextual. A run that starts from another has that one's."""
    front = config.model.get("front")
    if config.start.run or not isinstance(front, dict) or front.get("kind") != KIND or not front.get("run"):
        return None
    return Path(front["run"]).absolute()
