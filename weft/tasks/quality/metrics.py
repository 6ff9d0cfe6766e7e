"""Metrics of estimated quality: correlations of scores, and MCC and F1 of the words that are tagged BAD or OK, in percent.

Shapes: N translations · S counts per translation.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from weft.evaluation.metrics import Counts, Metric, score
from weft.tasks.pairs.metrics import MeanSquaredError, Pearson, Spearman
from weft.tasks.quality.data import join_label, split_label
from weft.tasks.quality.labels import BAD, words_of
from weft.tasks.two_texts import split_texts


def scores_in(texts: Sequence[str]) -> list[str]:
    """The scores in labels."""
    return [split_label(text)[0] for text in texts]


class ScorePearson(Pearson):
    """Pearson's correlation of scores."""

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        return super().count(scores_in(hypotheses), scores_in(references))


class ScoreSpearman(Spearman):
    """Spearman's correlation of scores."""

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        return super().count(scores_in(hypotheses), scores_in(references))


class ScoreError(MeanSquaredError):
    """The mean squared error of scores."""

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        return super().count(scores_in(hypotheses), scores_in(references))


class TagMetric(Metric):
    """A metric of tags. Counts [N, 4]: words that are rightly BAD, wrongly BAD, wrongly OK and rightly OK."""

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        return np.array([self._counts(ours, theirs) for ours, theirs in zip(hypotheses, references, strict=True)], np.float64)

    def _counts(self, ours: str, theirs: str) -> list[int]:
        said, true = (np.array([tag == BAD for tag in split_label(text)[1]], bool) for text in (ours, theirs))
        said = np.resize(said, len(true)) if len(said) else np.zeros(len(true), bool)
        return [int((a & b).sum()) for a, b in ((said, true), (said, ~true), (~said, true), (~said, ~true))]


class Matthews(TagMetric):
    """Matthews' correlation of tags (MCC), that of two variables that are 0 or 1; 0 if all tags are the same."""

    name = "MCC"
    signature = "100 · Matthews' correlation of OK and BAD|over:all words"

    def value(self, sums: Counts) -> Counts:
        hit, false, missed, right = np.moveaxis(np.asarray(sums, np.float64), -1, 0)
        spread = np.sqrt((hit + false) * (hit + missed) * (right + false) * (right + missed))
        return np.where(spread > 0, 100 * (hit * right - false * missed) / np.where(spread > 0, spread, 1), 0.0)


class BadF1(TagMetric):
    """F₁ of the words that are BAD."""

    name = "F1 BAD"
    signature = "F1 of words that are BAD"

    def value(self, sums: Counts) -> Counts:
        return _f1(sums[..., 0], sums[..., 1] + sums[..., 2])


class OkF1(TagMetric):
    """F₁ of the words that are OK."""

    name = "F1 OK"
    signature = "F1 of words that are OK"

    def value(self, sums: Counts) -> Counts:
        return _f1(sums[..., 3], sums[..., 1] + sums[..., 2])


def _f1(right: Counts, wrong: Counts) -> Counts:
    return np.asarray(200 * right / np.maximum(2 * right + wrong, 1))


NUMBER_METRICS: tuple[type[Metric], ...] = (ScorePearson, ScoreSpearman, ScoreError)
TAG_METRICS: tuple[type[Metric], ...] = (Matthews, BadF1, OkF1)
METRICS = {"both": (*NUMBER_METRICS, *TAG_METRICS), "number": NUMBER_METRICS, "tags": TAG_METRICS}
"""By what is learnt."""


def floors(examples: Sequence[tuple[str, str]], mean: float | None, metrics: Sequence[Metric]) -> dict[str, dict[str, float]]:
    """The scores of estimates that do not read: the mean and the most frequent tag, and the number of words.

    mean: of the scores in training; None if no scores are estimated
    """
    references = [label for _, label in examples]
    counts = Counter(tag for label in references for tag in split_label(label)[1])
    usual = max(counts, key=lambda tag: counts[tag], default="")
    words = [len(words_of(split_texts(source)[1])) for source, _ in examples]
    tags = [[usual] * len(split_label(label)[1]) for label in references]
    guesses = {"the same for all": [join_label("" if mean is None else f"{mean:.4f}", each) for each in tags]}
    if mean is not None:
        guesses["minus the number of words"] = [join_label(str(-n), own) for n, own in zip(words, tags, strict=True)]
    return {
        name: {each.name: each.value for each in score(each, references, list(metrics)).values()}
        for name, each in guesses.items()
    }
