"""Recurrent models learn small tasks in seconds, through the same call that a user makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.helpers import tiny

SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("model.")},
    **{"model.dim": 48, "model.embedding": 0, "model.encoder_dim": 0, "model.dropout": 0.0},
    **{"model.encoder_layers": 1, "model.decoder_layers": 1},
    "train.steps": 250,
    "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 25},
}

MODELS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "bahdanau": ("rnn-bahdanau", "reverse", 7, {}),
    "luong": ("rnn-luong", "reverse", 7, {}),
    "luong, variational": ("rnn-luong", "copy", 7, {"input_feeding": False, "dropout": 0.05, "variational_dropout": True}),
    "sutskever": ("rnn-fixed", "copy", 4, {}),
    "cho": ("rnn-fixed", "copy", 4, {"style": "cho", "cell": "gru", "bridge": "tanh", "readout": "maxout"}),
}
"""name → recipe, task, its longest sequences, options of the model."""


@pytest.mark.parametrize("name", MODELS)
def test_unseen_sequences_come_out_right(name: str, tmp_path: Path) -> None:
    recipe, task, longest, options = MODELS[name]
    settings = {**SETTINGS, **{f"model.{key}": value for key, value in options.items()}}
    data, valid = tiny.generated(task, longest=longest), tiny.generated(task, 200, "valid", longest=longest)
    result = weft.train(recipe, data=data, valid=valid, out=tmp_path / "run", set=settings)
    assert result.scores["exact"] >= 90
    found = weft.load(tmp_path / "run").translate(["k d q", "b"], prefix=["q d", ""], beam=4, attention=True)
    assert found[0].text.startswith("q d")
    assert bool(found[0].attention) == (recipe != "rnn-fixed")
    for each in found:
        for weights in each.attention.values():
            assert weights.shape[1:] == (len(each.tokens), len(each.source_tokens))
