"""Rewards of single texts, from 0 to 1, for training on them."""

from collections.abc import Sequence
from typing import Protocol

from weft.evaluation.metrics import Bleu, Chrf, Metric


class Reward(Protocol):
    """Scores texts; higher is better. It may not depend on the other texts of a call."""

    def __call__(self, texts: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> Sequence[float]:
        """One number for each text, given its reference and its source."""
        ...


class MetricReward:
    """The value of a metric on a single text."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def __call__(self, texts: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> list[float]:
        scores: list[float] = (self.metric.value(self.metric.count(texts, references)) / 100).tolist()
        return scores


class BleuReward(MetricReward):
    """sacreBLEU's BLEU of a sentence: smoothed, without orders that it is too short for.

    tokenize: sacreBLEU's tokenizer
    lowercase: ignore case
    """

    def __init__(self, *, tokenize: str = "13a", lowercase: bool = False) -> None:
        super().__init__(Bleu(tokenize=tokenize, lowercase=lowercase, effective_order=True))


class ChrfReward(MetricReward):
    """chrF2 of a sentence.

    lowercase: ignore case
    """

    def __init__(self, *, lowercase: bool = False) -> None:
        super().__init__(Chrf(lowercase=lowercase))


class ConstantReward:
    """The same for every text: a control for the gain of any other reward (Choshen et al. 2020).

    value: the reward
    """

    def __init__(self, *, value: float = 1.0) -> None:
        self.value = value

    def __call__(self, texts: Sequence[str], references: Sequence[str], sources: Sequence[str]) -> list[float]:
        return [self.value] * len(texts)
