"""Made-up texts of two languages, which are no translations of each other, and settings of models that learn from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.helpers import tiny
from tests.helpers.generated_texts import sentences, twin

SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("decode.")},
    "model.encoder_self": "full",
    "model.decoder_self": "full",
    "model.cross": "full",
    "data.hold_out": 4,
    "task.denoising_steps": 8,
    "task.dictionary_steps": 4,
    "train.steps": 6,
    "train.save_every": 3,
    "train.schedule": {"kind": "constant", "rate": 1e-3},
}
"""Written over the recipe unsupervised."""


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {**SETTINGS, "data.cache": str(folder / "cache"), **changes}


def write_texts(folder: Path, second: str = "xx") -> list[str]:
    """Writes a text of English and one of its twin, and returns what to give as --data."""
    texts = {"en": sentences(300, seed=1), second: [twin(line) for line in sentences(320, seed=2)]}
    for language, lines in texts.items():
        (folder / language).write_text("".join(f"{line}\n" for line in lines))
    return [f"{language}={folder / language}" for language in texts]
