"""How many words of texts belong to the language that they should be in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

FOREIGN = 3.0
"""A word belongs to the other language if it is this many times as frequent there."""


class Purity:
    """Knows how frequent each word is in texts of two languages, which are given as words."""

    def __init__(self, first: Iterable[str], second: Iterable[str]) -> None:
        counts = [Counter(words) for words in (first, second)]
        self.frequencies = [{word: count / each.total() for word, count in each.items()} for each in counts]

    def __call__(self, words: Sequence[str], language: int) -> float:
        """The percentage of words that are not much more frequent in the other language than in this one, 0 or 1."""
        own, foreign = self.frequencies[language], self.frequencies[1 - language]
        wrong = sum(foreign.get(word, 0.0) > FOREIGN * own.get(word, 0.0) for word in words)
        return 100 * (1 - wrong / max(1, len(words)))
