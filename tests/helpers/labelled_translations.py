"""Translations of colours with their labels, some with wrong words, for tests of quality estimation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers import tiny

WORDS = {"red": "rot", "green": "gruen", "blue": "blau", "white": "weiss", "black": "schwarz"}

SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("model")},
    "model": {"kind": "composed", "encoder": {"kind": "identity", "dim": 24}},
    "task": {
        "kind": "quality",
        "estimator": {"kind": "esim", "composition": {"kind": "rnn", "dim": 24, "dropout": 0.0}},
        "hidden": 16,
        "tags_weight": 4.0,
        "dropout": 0.0,
    },
    "train.steps": 200,
    "train.batch_tokens": 1024,
    "train.best_by": "loss",
}
"""Written over transformer-tiny."""


def records(count: int = 400, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Each word is right with a probability of ¾, else it is that of no word of the source; the score is their share."""
    random, targets = np.random.default_rng(seed), [*WORDS.values()]
    for _ in range(count):
        source = random.permutation([*WORDS])[: random.integers(2, 4)].tolist()
        right_words = [WORDS[word] for word in source]
        right = random.random(len(source)) < 0.75
        others = [random.choice([each for each in targets if each not in right_words]) for _ in source]
        written = [WORDS[word] if good else str(other) for word, good, other in zip(source, right, others, strict=True)]
        tags = " ".join("OK" if good else "BAD" for good in right)
        score = round(float(100 * right.mean()), 2)
        yield {"source": " ".join(source), "translation": " ".join(written), "score": score, "tags": tags}


def write(file: Path, count: int = 400, seed: int = 0) -> str:
    file.write_text("".join(json.dumps(each) + "\n" for each in records(count, seed)))
    return str(file)
