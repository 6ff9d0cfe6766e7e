"""Tokenizers that a run takes over from another one, so that both have one vocabulary."""

from __future__ import annotations

from pathlib import Path

from weft.access import why_unreadable
from weft.config.sections import Config, load_config
from weft.data.marks import load_marked
from weft.data.tokenizer import Tokenizer
from weft.errors import RunError


def tokenizers_of(config: Config) -> tuple[Config, Tokenizer, Tokenizer]:
    """The tokenizers of the run that data.tokenizer_of names, and the configuration with their settings."""
    run = Path(str(config.data.tokenizer_of))
    if problem := why_unreadable(run / "config.yaml", "run"):
        raise RunError(f"data.tokenizer_of: {run}: {problem}")
    data = load_config(run / "config.yaml").data
    settings = {f"data.{key}": getattr(data, key) for key in ("tokenizer", "vocabulary", "shared_vocabulary")}
    return config.replaced(settings), *load_marked(run, data.tokenizer)
