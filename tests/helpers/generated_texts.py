"""Made-up data: a language and its twin, with other words and adjectives that follow their nouns, and a text for ciphers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

NOUNS = ["dog", "cat", "bird", "horse", "man", "woman", "child", "friend", "king", "paris", "berlin", "taxi"]
ADJECTIVES = ["red", "small", "old", "happy", "tall", "quiet", "radio"]
VERBS = ["sees", "likes", "follows", "hears", "finds", "calls", "helps"]
PLACES = ["house", "garden", "street", "river", "forest", "market"]
SAME = {
    *("paris", "berlin", "taxi", "radio", "happy", "tall", "quiet", "old"),
    *("helps", "calls", "finds", "likes", "market", "garden"),
}
"""Words of both languages, 14 of 33, from which a dictionary can start."""

LETTERS = "abcdefghij"

CIPHER: dict[str, Any] = {
    "data.tokenizer": {"kind": "characters", "byte_fallback": False},
    "data.vocabulary": 14,
    "model.width": 16,
    "task.extent": 20,
    "task.key": [3],
    "train.batch_tokens": 1280,
    "train.validate_every": 0,
    "train.tensorboard": False,
    "train.device": "cpu",
    "train.threads": 1,
}
"""Settings for a cipher of the text that `write_letters` writes."""


def write_letters(file: Path) -> Path:
    """Writes a text of ten letters, each with its own followers."""
    draw = np.random.default_rng(0)
    follows, letters, here = draw.dirichlet(np.full(10, 0.3), 10).cumsum(1), [], 0
    for chance in draw.random(40_000):
        here = min(int(np.searchsorted(follows[here], chance)), 9)
        letters.append(LETTERS[here])
    file.write_text("\n".join("".join(letters[at : at + 100]) for at in range(0, len(letters), 100)))
    return file


def sentences(count: int, seed: int) -> list[str]:
    """Sentences such as "red dog sees cat at garden". Each word prefers some companions, which tell it apart from others."""
    habits, draw = np.random.default_rng(0), np.random.default_rng(seed)
    qualities, acts, objects, scenes = (
        habits.dirichlet(np.full(len(words), 0.3), size)
        for words, size in ((ADJECTIVES, len(NOUNS)), (VERBS, len(NOUNS)), (NOUNS, len(VERBS)), (PLACES, len(VERBS)))
    )
    often = habits.dirichlet(np.full(len(NOUNS), 3.0))

    def pick(chances: np.ndarray) -> int:
        return int(draw.choice(len(chances), p=chances))

    found = []
    for _ in range(count):
        noun = pick(often)
        verb = pick(acts[noun])
        words = [ADJECTIVES[pick(qualities[noun])], NOUNS[noun], VERBS[verb], NOUNS[pick(objects[verb])]]
        found.append(" ".join([*words[draw.integers(2) :], "at", PLACES[pick(scenes[verb])]]))
    return found


def twin(text: str) -> str:
    """The translation of a sentence or a word: words are spelt backwards, and an adjective follows its noun."""
    words = text.split()
    if words[0] in ADJECTIVES and len(words) > 1:
        words[:2] = words[1::-1]
    return " ".join(word if word in SAME else word[::-1] for word in words)
