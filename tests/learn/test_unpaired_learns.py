"""Learning without pairs: a cipher is solved, and a made-up second language is translated."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import weft
from tests.helpers import tiny
from tests.helpers.generated_texts import CIPHER, SAME, sentences, twin, write_letters

SOLVABLE: dict[str, Any] = {
    **CIPHER,
    "model.dim": 64,
    "task.spread": 0.0,
    "task.cycle_steps": 500,
    "train.schedule": {"kind": "cosine", "rate": 6e-2, "warmup": 0},
    "train.steps": 120,
    "train.validate_sentences": 200,
}


def test_a_cipher_of_ten_letters_is_solved(tmp_path: Path) -> None:
    """Tables begin at random, so discriminators alone have to teach them."""
    settings = {**SOLVABLE, "data.cache": str(tmp_path / "cache")}
    text = write_letters(tmp_path / "text.txt")
    assert weft.train("cipher-shift", data=str(text), out=tmp_path / "run", set=settings).scores["accuracy"] >= 99


def test_a_made_up_language_is_translated_without_pairs(tmp_path: Path) -> None:
    """Adjectives follow their nouns, and 19 of 33 words are other ones: these are right in translations of new sentences."""
    texts = {"en": sentences(3000, seed=1), "xx": [twin(line) for line in sentences(3100, seed=2)]}
    for language, lines in texts.items():
        (tmp_path / language).write_text("".join(f"{line}\n" for line in lines))
    settings = {
        **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("decode.")},
        "data.cache": str(tmp_path / "cache"),
        "data.hold_out": 50,
        "model.dim": 64,
        "model.feedforward": 128,
        "model.encoder_self": "full",
        "model.decoder_self": "full",
        "model.cross": "full",
        "task.denoising_steps": 1000,
        "task.dictionary_steps": 100,
        "train.steps": 260,
        "train.batch_tokens": 512,
        "train.schedule": {"kind": "cosine", "rate": 5e-3, "warmup": 50},
        "train.validate_every": 0,
    }
    weft.train("unsupervised", data=[f"{name}={tmp_path / name}" for name in texts], out=tmp_path / "run", set=settings)
    trained, test = weft.load(tmp_path / "run", device="cpu"), sentences(100, seed=9)
    for into, given, expected in (("xx", test, [twin(line) for line in test]), ("en", [twin(line) for line in test], test)):
        written = [each.text.split() for each in trained.stream(given, into=into, search="greedy")]
        pairs = [pair for text, line in zip(written, expected) for pair in zip_longest(text, line.split())]
        learnt = [one == other for one, other in pairs if other not in SAME]
        assert sum(learnt) >= 0.95 * len(learnt)
