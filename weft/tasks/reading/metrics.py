"""Metrics of answers: equal to the reference, and the F1 of their words, as SQuAD scores them (Rajpurkar et al. 2016).

Capitals, punctuation and the articles a, an and the do not count. Each line of a reference is a reference; the best one counts.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from weft.evaluation.metrics import Counts, Metric

ARTICLES = {"a", "an", "the"}


def answer_words(text: str) -> list[str]:
    """The words of an answer that count."""
    return [word for word in re.sub(r"[^\w\s]", "", text.lower()).split() if word not in ARTICLES]


def f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """2 · shared / (words of the answer + words of the reference); two empty answers are equal."""
    if not answer and not reference:
        return 1.0
    shared = (Counter(answer) & Counter(reference)).total()
    return 2 * shared / (len(answer) + len(reference))


class AnswerMetric(Metric):
    """A metric of answers, whose references are the lines of a text."""

    several_references = True

    def of(self, answer: list[str], reference: list[str]) -> float:
        raise NotImplementedError

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        """[N, 2]: the best value over the references, and 1."""
        rows = zip(hypotheses, references, strict=True)
        return np.array(
            [
                [max(self.of(answer_words(text), answer_words(line)) for line in lines.splitlines() or [""]), 1.0]
                for text, lines in rows
            ]
        )


class ExactAnswer(AnswerMetric):
    """The share of answers with the words of a reference."""

    name = "exact"
    signature = "answers equal to a reference|case:no|punctuation:no|articles:no"

    def of(self, answer: list[str], reference: list[str]) -> float:
        return float(answer == reference)


class AnswerF1(AnswerMetric):
    """The mean F1 of the words of an answer."""

    name = "F1"
    signature = "mean F1 of the words of an answer|case:no|punctuation:no|articles:no"

    def of(self, answer: list[str], reference: list[str]) -> float:
        return f1(answer, reference)
