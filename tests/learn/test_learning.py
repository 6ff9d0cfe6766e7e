"""Small tasks are learned, in seconds, through the same call that a user makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.helpers import tiny
from weft.data import generators as generated

MODELS: dict[str, tuple[str, dict[str, Any], float]] = {
    "copy": ("copy", {"train.steps": 260}, 95),
    "reverse": ("reverse", {}, 90),
    "packed": ("reverse", {"train.packed": True, "train.batch_tokens": 512, "train.steps": 260}, 90),
    "post-norm, learned positions": (
        "copy",
        {
            **{"model.norm": "post", "model.position": "learned", "model.max_length": 32, "data.max_length": 31},
            "train.steps": 260,
        },
        95,
    ),
    "linear self, additive cross": (
        "copy",
        {
            **{"model.encoder_self": "linear", "model.decoder_self": "linear", "model.cross": "additive"},
            "train.steps": 260,
        },
        95,
    ),
    "recurrent": (
        "copy",
        {"model.position": "none", "model.encoder_self": "recurrent", "model.decoder_self": "recurrent"},
        95,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_unseen_sequences_come_out_right(name: str, tmp_path: Path) -> None:
    kind, settings, accuracy = MODELS[name]
    result = tiny.train(tmp_path / "run", kind, settings)
    assert result.scores["exact"] >= accuracy


def test_dates_of_unseen_days_come_out_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's task made short: 400 steps of a small model on 6,000 dates in four of the forty languages."""
    monkeypatch.setattr(generated, "LANGUAGES", ["de", "en", "fr", "it"])
    for split, count in (("train", 6000), ("valid", 200)):
        pairs = generated.PairGenerator("dates", count, split=split)
        (tmp_path / f"{split}.tsv").write_text("".join(f"{said}\t{meant}\n" for said, meant in pairs), "utf-8")
    settings = {
        "model.dim": 64,
        "train.steps": 400,
        "train.batch_tokens": 1024,
        "train.validate_every": 0,
        "train.tensorboard": False,
        "train.precision": "float32",
        "train.device": "cpu",
        "train.threads": 1,
        "train.schedule": {"kind": "cosine", "rate": 6e-3, "warmup": 50},
    }
    data, valid = str(tmp_path / "train.tsv"), str(tmp_path / "valid.tsv")
    result = weft.train("demo-dates", data=data, valid=valid, out=tmp_path / "run", set=settings)
    assert result.scores["exact"] >= 80
    said = ["3 mars 1999", "12 mai 2004", "7. Oktober 2011", "21 giugno 1987", "May 30, 2015"]
    meant = ["1999-03-03", "2004-05-12", "2011-10-07", "1987-06-21", "2015-05-30"]
    found = [each.text for each in weft.load(tmp_path / "run").translate(said)]
    assert sum(map(str.__eq__, found, meant)) >= 3, found
