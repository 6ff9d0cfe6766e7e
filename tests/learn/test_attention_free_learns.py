"""Models without self-attention learn a small task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny

MIXERS: dict[str, dict[str, Any]] = {
    "fnet and gmlp": {"model.encoder_self": "fnet", "model.decoder_self": "gmlp", "train.steps": 280},
    "aft": {
        "model.encoder_self": {"kind": "aft", "form": "conv", "window": 5},
        "model.decoder_self": {"kind": "aft", "form": "full"},
        "train.steps": 220,
    },
}


@pytest.mark.parametrize("name", MIXERS)
def test_unseen_sequences_are_copied(name: str, tmp_path: Path) -> None:
    assert tiny.train(tmp_path / "run", "copy", MIXERS[name]).scores["exact"] >= 95
