"""Copying is learned in seconds, through the same calls that a user makes: unseen words come out as they went in."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import tiny

import weft

SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("model.")},
    "data.vocabulary": 40,
    "train.steps": 250,
    "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 25},
}
RNN = {"kind": "rnn", "dim": 32, "dropout": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "pointer-generator": {"base": RNN},
    "pointer network": {"base": {**RNN, "style": "luong"}, "generate": False},
}


def word(rng: random.Random, letters: str) -> str:
    return "".join(rng.choices(letters, k=5))


def lines(rng: random.Random, words: list[str], count: int) -> list[list[str]]:
    return [rng.choices(words, k=rng.randint(1, 6)) for _ in range(count)]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Words to be said backwards, most of them too rare for the vocabulary."""
    rng = random.Random(1)
    words = [word(rng, "abcdefgh") for _ in range(400)]
    path = tmp_path_factory.mktemp("pairs") / "train.tsv"
    path.write_text("".join(f"{' '.join(line)}\t{' '.join(reversed(line))}\n" for line in lines(rng, words, 3000)))
    return str(path)


@pytest.mark.parametrize("name", MODELS)
def test_unseen_words_are_copied(name: str, pairs: str, tmp_path: Path) -> None:
    options = {f"model.{key}": value for key, value in MODELS[name].items()}
    weft.train("pointer", data=pairs, out=tmp_path / "run", set={**SETTINGS, **options})
    rng = random.Random(2)
    asked = lines(rng, [word(rng, "stuvwxyz") for _ in range(50)], 60)
    found = weft.load(tmp_path / "run").translate([" ".join(line) for line in asked])
    right = sum(each.text == " ".join(reversed(line)) for each, line in zip(found, asked, strict=True))
    assert right >= 54
