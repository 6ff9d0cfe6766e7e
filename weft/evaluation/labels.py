"""Scores of labels: accuracy and macro-averaged F1, from 0 to 100."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.config.registry import suggest
from weft.errors import DataError
from weft.evaluation.metrics import Counts, ExactMatch, Metric


class LabelAccuracy(Metric):
    """The share of texts whose label is the right one: exact match, under the name it has for labels."""

    name = "accuracy"
    signature = "labels equal to their reference|strip:yes"

    def __init__(self) -> None:
        self.exact = ExactMatch()

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        return self.exact.count(hypotheses, references)

    def value(self, sums: Counts) -> Counts:
        return self.exact.value(sums)


class MacroF1(Metric):
    """F₁ = 2 · right / (said + true) of each label, and the mean over labels that were said or true: rare ones count alike."""

    name = "macro F1"
    signature = "mean of F1 over labels that occur"

    def __init__(self, labels: Sequence[str]) -> None:
        self.place = {label: number for number, label in enumerate(labels)}

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        """[N, 3 · labels]: for each label whether it was right, said, true."""
        found = np.zeros((len(references), 3, len(self.place)))
        for row, (ours, theirs) in enumerate(zip(hypotheses, references)):
            said, true = self.place.get(ours.strip()), self.place.get(theirs.strip())
            if true is None:
                raise DataError(
                    f"the label {theirs!r} of pair {row + 1:,} is not one of the run's; {suggest(theirs, self.place)}"
                )
            found[row, 2, true] = 1
            if said is not None:
                found[row, 1, said] = 1
                found[row, 0, true] = said == true
        return found.reshape(len(references), -1)

    def value(self, sums: Counts) -> Counts:
        right, said, true = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, -1), -2, 0)
        occurs = said + true > 0
        each = np.where(occurs, 2 * right / np.maximum(said + true, 1), 0.0)
        return np.asarray(100 * each.sum(-1) / np.maximum(occurs.sum(-1), 1))
