"""Attentions that sort learn a small task, step by step decoding included; a Reformer in reversible layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny

KINDS: dict[str, dict[str, Any]] = {
    "lsh": {"kind": "lsh", "buckets": 2, "window": 4},
    "sinkhorn": {"kind": "sinkhorn", "block": 3},
}


@pytest.mark.parametrize("kind", KINDS)
def test_unseen_sequences_are_copied(kind: str, tmp_path: Path) -> None:
    settings = {
        "model.encoder_self": KINDS[kind],
        "model.decoder_self": KINDS[kind],
        "model.reversible": kind == "lsh",
        "train.validate_sentences": 100,
        "train.steps": 300 if kind == "lsh" else 250,
    }
    assert tiny.train(tmp_path / "run", "copy", settings).scores["exact"] >= 90
