"""A hierarchical attention network finds the sentence that decides, and needs the sentences to find it."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.data.formats import open_pairs
from weft_studies.synthetic import COLOURS, DECIDES

LEVEL = {"kind": "rnn", "dim": 24, "dropout": 0.0}
SETTINGS: dict[str, Any] = {
    "data.vocabulary": 50,
    "model.front.encoder": LEVEL,
    "model.encoder": LEVEL,
    "task.dropout": 0.0,
    "train.steps": 250,
    "train.batch_tokens": 1024,
    "train.precision": "float32",
    "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 20},
    "train.validate_every": 0,
    "train.tensorboard": False,
    "train.device": "cpu",
    "train.threads": 1,
}
TEST = "generated:verdict?count=200&split=test"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "han"
    found = weft.train("han", out=out, data="generated:verdict?count=3000", valid=TEST, set=SETTINGS)
    assert found.scores["accuracy"] >= 99
    return out


def test_attention_finds_the_deciding_sentence(run: Path) -> None:
    documents = [text for text, _ in open_pairs(TEST)]
    found = weft.load(run, device="cpu").translate(documents, attention=True)
    on_it, on_words = [], []
    for text, label in zip(documents, found, strict=True):
        deciding = next(place for place, line in enumerate(text.splitlines()) if DECIDES in line)
        on_it.append(label.attention["pooling"][0, 0, deciding])
        words = label.sentences[deciding]
        weights = label.attention["words"][deciding, 0]
        assert weights.sum() == pytest.approx(1, abs=1e-4)
        on_words.append(sum(weights[place] for place, word in enumerate(words) if word.strip() in (*COLOURS, DECIDES)))
    assert np.mean(on_it) >= 0.95
    assert np.mean(on_words) >= 0.5


def test_words_dealt_out_to_other_sentences_say_little(run: Path) -> None:
    """The control: the same words in the same document, but not together. The label cannot be told from the words alone."""
    draw = random.Random(1)
    pairs = list(open_pairs(TEST))
    mixed = []
    for text, _ in pairs:
        words = iter(draw.sample(text.split(), len(text.split())))
        mixed.append("".join(" ".join(islice(words, len(line.split()))) + "\n" for line in text.splitlines()))
    found = weft.load(run, device="cpu").translate(mixed)
    right = sum(label.text == true for label, (_, true) in zip(found, pairs, strict=True))
    assert right < 0.7 * len(pairs)
