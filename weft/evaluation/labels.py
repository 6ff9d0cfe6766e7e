"""Metrics of classification: accuracy and macro-averaged F1, from 0 to 100."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.config.registry import suggest
from weft.errors import DataError
from weft.evaluation.metrics import Counts, ExactMatch, Metric


class LabelAccuracy(ExactMatch):
    """The share of texts with the right label. It is exact match under the name that is usual for labels."""

    name = "accuracy"
    signature = "labels equal to their reference|strip:yes"


class MacroF1(Metric):
    """The mean over labels of F₁ = 2 · correct / (predicted + true), for labels that were predicted or true."""

    name = "macro F1"
    signature = "mean of F1 over labels that occur"

    def __init__(self, labels: Sequence[str]) -> None:
        self.index = {label: number for number, label in enumerate(labels)}

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        """[N, 3 · labels]: for each label, whether it was correct, predicted, true."""
        counts = np.zeros((len(references), 3, len(self.index)))
        for row, (ours, theirs) in enumerate(zip(hypotheses, references)):
            predicted, true = self.index.get(ours.strip()), self.index.get(theirs.strip())
            if true is None:
                raise DataError(
                    f"the label {theirs!r} of pair {row + 1:,} is not a label of the run; {suggest(theirs, self.index)}"
                )
            counts[row, 2, true] = 1
            if predicted is not None:
                counts[row, 1, predicted] = 1
                counts[row, 0, true] = predicted == true
        return counts.reshape(len(references), -1)

    def value(self, sums: Counts) -> Counts:
        correct, predicted, true = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, -1), -2, 0)
        occurs = predicted + true > 0
        each = np.where(occurs, 2 * correct / np.maximum(predicted + true, 1), 0.0)
        return np.asarray(100 * each.sum(-1) / np.maximum(occurs.sum(-1), 1))
