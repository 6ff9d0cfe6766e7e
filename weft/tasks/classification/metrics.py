"""Metrics of labels, from 0 to 100. A text has one label or, if the metric is given a `split`, any number of them.

Shapes: N texts · S counts per text.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from weft.config.registry import suggest
from weft.errors import DataError
from weft.evaluation.metrics import Breakdown, Counts, Metric

Split = Callable[[str], Sequence[str]]
"""The labels in a text."""

MATRIX = 10
"""The most labels of which a whole confusion matrix is shown."""


def single(text: str) -> list[str]:
    """The whole text as one label."""
    return [text.strip()]


class LabelMetric(Metric):
    """A metric of labels. split: finds the labels in a text; by default it is one label."""

    def __init__(self, split: Split = single) -> None:
        self.split = split

    def sets(self, hypotheses: Sequence[str], references: Sequence[str]) -> list[tuple[set[str], set[str]]]:
        """The predicted and the true labels of each text."""
        return [(set(self.split(ours)), set(self.split(theirs))) for ours, theirs in zip(hypotheses, references)]


class LabelAccuracy(LabelMetric):
    """The share of texts with exactly the right labels."""

    name = "accuracy"
    signature = "labels equal to their reference|strip:yes"

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        return np.array([[ours == theirs, 1] for ours, theirs in self.sets(hypotheses, references)], np.float64)


class MicroF1(LabelMetric):
    """F₁ = 2 · correct / (predicted + true) over the labels of all texts together."""

    name = "micro F1"
    signature = "F1 of all labels of all texts"

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        labels = self.sets(hypotheses, references)
        return np.array([[len(ours & theirs), len(ours), len(theirs)] for ours, theirs in labels], np.float64)

    def value(self, sums: Counts) -> Counts:
        return 200 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1)


class MacroF1(LabelMetric):
    """The mean over labels of F₁ = 2 · correct / (predicted + true), for labels that were predicted or true."""

    name = "macro F1"
    signature = "mean of F1 over labels that occur"

    def __init__(self, labels: Sequence[str], split: Split = single) -> None:
        super().__init__(split)
        self.index = {label: number for number, label in enumerate(labels)}

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        """[N, 3 · labels]: for each label, whether it was correct, predicted, true."""
        counts = np.zeros((len(references), 3, len(self.index)))
        for row, (ours, theirs) in enumerate(self.sets(hypotheses, references)):
            for label in theirs:
                if label not in self.index:
                    raise DataError(
                        f"the label {label!r} of pair {row + 1:,} is not a label of the run; {suggest(label, self.index)}"
                    )
            for place, labels in enumerate((ours & theirs, ours, theirs)):
                counts[row, place, [self.index[label] for label in labels if label in self.index]] = 1
        return counts.reshape(len(references), -1)

    def breakdowns(self, hypotheses: Sequence[str], references: Sequence[str]) -> list[Breakdown]:
        """The scores of each label, the most frequent first; and how often each label was taken for each other one."""
        correct, predicted, true = self.count(hypotheses, references).sum(0).reshape(3, -1).astype(int).tolist()
        rows = [
            (label, 100 * right / max(1, said), 100 * right / max(1, of), 200 * right / max(1, said + of), of, said)
            for label, right, said, of in zip(self.index, correct, predicted, true, strict=True)
            if said or of
        ]
        rows.sort(key=lambda row: -row[4])
        columns = ["label", "precision", "recall", "F1", "true", "predicted"]
        details = [Breakdown("labels", "scores of each label", columns, rows)]
        return details if self.split is not single else [*details, _confusion(hypotheses, references)]

    def value(self, sums: Counts) -> Counts:
        correct, predicted, true = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, -1), -2, 0)
        occurs = predicted + true > 0
        each = np.where(occurs, 2 * correct / np.maximum(predicted + true, 1), 0.0)
        return np.asarray(100 * each.sum(-1) / np.maximum(occurs.sum(-1), 1))


def _confusion(hypotheses: Sequence[str], references: Sequence[str]) -> Breakdown:
    """The confusion matrix: a row for each true label, a column for each predicted one.

    Of more than `MATRIX` labels, the pairs of a true and a wrong label, the most frequent first.
    """
    pairs = Counter(zip(map(str.strip, references), map(str.strip, hypotheses)))
    labels = sorted({label for pair in pairs for label in pair})
    if len(labels) <= MATRIX:
        rows: list[tuple[str | int, ...]] = [(true, *(pairs[true, label] for label in labels)) for true in labels]
        return Breakdown("confusion", "confusion matrix", ["true \\ predicted", *labels], rows)
    wrong = [(true, label, count) for (true, label), count in pairs.most_common() if true != label]
    return Breakdown("confusion", "confusions", ["true", "predicted", "texts"], wrong)
