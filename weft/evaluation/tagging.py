"""Metrics of tags. Sentences are texts with a word, a tab and its tag on each line."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Sequence
from itertools import zip_longest

import numpy as np

from weft.evaluation.entities import find_entities
from weft.evaluation.metrics import Counts, Metric


def tags_in(text: str) -> list[str]:
    """The tags of a sentence."""
    return [line.rpartition("\t")[2] for line in text.split("\n")] if text else []


class TagAccuracy(Metric):
    """The share of words with the right tag."""

    name = "accuracy"
    signature = "words with the right tag"

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        return np.array([self._sentence(ours, theirs) for ours, theirs in zip(hypotheses, references)], np.float64)

    def _sentence(self, ours: str, theirs: str) -> tuple[int, int]:
        true = tags_in(theirs)
        counted = self.counted(theirs)
        right = [said == tag for said, tag in zip_longest(tags_in(ours)[: len(true)], true)]
        return sum(good for good, counts in zip(right, counted, strict=True) if counts), sum(counted)

    def counted(self, reference: str) -> list[bool]:
        """Which words of a sentence count: all."""
        return [True] * len(tags_in(reference))

    def value(self, sums: Counts) -> Counts:
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)


class UnknownAccuracy(TagAccuracy):
    """The share of words with the right tag among those that do not occur in the training data; 0 if there are none."""

    name = "unknown accuracy"
    signature = "words with the right tag|of:words that are not in the training data"

    def __init__(self, known: Container[str]) -> None:
        self.known = known

    def counted(self, reference: str) -> list[bool]:
        return [line.rpartition("\t")[0] not in self.known for line in reference.split("\n")] if reference else []


class EntityMetric(Metric):
    """A share of whole entities, which are right if their words and their type are, as `conlleval` counts them."""

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        """[N, 3]: entities that are right, predicted, true."""
        pairs = [
            (set(find_entities(tags_in(ours))), set(find_entities(tags_in(theirs))))
            for ours, theirs in zip(hypotheses, references)
        ]
        return np.array([(len(ours & theirs), len(ours), len(theirs)) for ours, theirs in pairs], np.float64)

    @abstractmethod
    def below(self, sums: Counts) -> Counts:
        """What the number of entities that are right is divided by."""

    def value(self, sums: Counts) -> Counts:
        return np.asarray(100 * sums[..., 0] / np.maximum(self.below(sums), 1e-9))


class EntityF1(EntityMetric):
    """F₁ = 2 · right / (predicted + true)."""

    name = "F1"
    signature = "F1 of whole entities|as:conlleval"

    def below(self, sums: Counts) -> Counts:
        return np.asarray((sums[..., 1] + sums[..., 2]) / 2)


class EntityPrecision(EntityMetric):
    """Right / predicted."""

    name = "precision"
    signature = "precision of whole entities|as:conlleval"

    def below(self, sums: Counts) -> Counts:
        return np.asarray(sums[..., 1])


class EntityRecall(EntityMetric):
    """Right / true."""

    name = "recall"
    signature = "recall of whole entities|as:conlleval"

    def below(self, sums: Counts) -> Counts:
        return np.asarray(sums[..., 2])
