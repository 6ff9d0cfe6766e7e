"""The convolutional families learn small tasks in seconds, through the same call that a user makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.helpers import tiny

SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("model.")},
    "train.schedule": {"kind": "cosine", "rate": 5e-3, "warmup": 30},
}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "convs2s": ("reverse", "convs2s", {"dim": 32, "channels": 32, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}),
    "convs2s, packed": (
        "copy",
        "convs2s",
        {"dim": 32, "channels": 32, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0, "cross": "full"},
    ),
    "bytenet": (
        "copy",
        "bytenet",
        {"dim": 64, "dilations": [1, 2, 4], "encoder_sets": 1, "decoder_sets": 1, "dropout": 0.0, "ngrams": 3},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_unseen_sequences_come_out_right(name: str, tmp_path: Path) -> None:
    task, recipe, options = MODELS[name]
    settings = {
        **{**SETTINGS, **{f"model.{key}": value for key, value in options.items()}, "train.packed": "packed" in name},
        "train.steps": 300 if task == "reverse" else 180,
    }
    data, valid = tiny.generated(task), tiny.generated(task, 200, "valid")
    result = weft.train(recipe, data=data, valid=valid, out=tmp_path / "run", set=settings)
    assert result.scores["exact"] >= 95
