"""A made-up language and its twin: other words, and adjectives that follow their nouns."""

from __future__ import annotations

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
