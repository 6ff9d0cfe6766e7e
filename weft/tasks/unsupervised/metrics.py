"""Scores of translations without references: BLEU after the way there and back, and the words of the right language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from weft.data.word_vectors.vectors import split_words
from weft.evaluation.metrics import make_metrics, score
from weft.tasks.unsupervised.data import Monolingual

FOREIGN = 3.0
"""A word belongs to the other language if it is this many times as frequent there."""


class Purity:
    """Knows how frequent each word is in texts of two languages."""

    def __init__(self, texts: Sequence[Monolingual]) -> None:
        counts = [Counter(chain.from_iterable(map(split_words, text.lines()))) for text in texts]
        self.frequencies = [{word: count / each.total() for word, count in each.items()} for each in counts]

    def __call__(self, words: Sequence[str], language: int) -> float:
        """The percentage of words that are not much more frequent in the other language than in this one, 0 or 1."""
        own, foreign = self.frequencies[language], self.frequencies[1 - language]
        wrong = sum(foreign.get(word, 0.0) > FOREIGN * own.get(word, 0.0) for word in words)
        return 100 * (1 - wrong / max(1, len(words)))

    def of_texts(self, texts: Sequence[str], language: int) -> float:
        """The purity of all words of some texts."""
        return self([word for text in texts for word in split_words(text)], language)


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    return next(iter(score(hypotheses, references, make_metrics(["bleu"])).values())).value
