"""What the translation task can minimise besides plain cross-entropy teaches small models what it is meant to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import weft
from tests.helpers import tiny

SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("model.")},
    **{"model.dim": 48, "model.embedding": 0, "model.encoder_dim": 0, "model.dropout": 0.0},
    "train.steps": 220,
    "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 25},
}


def exact(run: Path, recipe: str, settings: dict[str, Any]) -> float:
    """How many of 200 unseen sequences a model turns round without a mistake, in percent."""
    data, valid = tiny.generated("reverse"), tiny.generated("reverse", 200, "valid")
    return weft.train(recipe, data=data, valid=valid, out=run, set={**SETTINGS, **settings}).scores["exact"]


def test_hard_attention_learns_where_to_look_by_reinforce_alone(tmp_path: Path) -> None:
    with_it = exact(tmp_path / "with", "rnn-hard", {"task.draws": 1})
    without = exact(tmp_path / "without", "rnn-hard", {"task.draws": 1, "task.reinforce_weight": 0.0})
    assert with_it >= 75
    assert without <= with_it - 20


def test_a_model_learns_while_it_is_fed_ever_more_of_its_own(tmp_path: Path) -> None:
    sampling = {"kind": "steps", "decay": {"kind": "inverse_sigmoid", "k": 30}}
    assert exact(tmp_path, "rnn-bahdanau", {"train.steps": 150, "task.sampling": sampling}) >= 80
