"""The verdict on a trained model in words: its validation score next to that of trivial answers, and what to do about it."""

from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
from torch import nn

from weft.evaluation.trivial_baselines import EXAMPLES, trivial_scores
from weft.tasks.base import LOSS, Measure, Task, all_metrics, find_measure
from weft.tasks.corpus_task import CorpusTask
from weft.training.auto.choose_settings import ENOUGH_PASSES, enough_tokens
from weft.training.log_text import rough_time

USELESS, WEAK = 1.15, 2.0
"""A score up to this many times that of a trivial answer says that the model has learnt nothing useful, or little."""

MEASURED, FEWEST_PASSES = 10_000, 2.0
"""Rows whose lengths are measured, and the fewest passes that are enough."""

MORE = 2.0
"""The least factor by which more time is advised."""

LEAST = 2.0
"""A gain of fewer points over a trivial answer is nothing useful either."""


@dataclass(frozen=True)
class Floor:
    """The best score of trivial answers, the measure it belongs to, and what the answer is.

    enough: how often a model of this size must read the data before more time is no advice
    """

    measure: Measure
    value: float
    answer: str
    enough: float = ENOUGH_PASSES

    def ratio(self, score: float) -> float:
        """The factor by which a score is better. A gain of a few points over a floor near 0 is not worth more than it."""
        if self.measure.higher_is_better:
            return score / max(self.value, LEAST)
        return max(self.value, LEAST) / max(score, 1e-9)


def find_floor(task: Task, model: nn.Module) -> Floor | None:
    """The floor of the score by which a run of the task is judged; None if no answers are scored."""
    if not isinstance(task, CorpusTask) or not task.references:
        return None
    metrics = {metric.key(): metric for metric in all_metrics(task)}
    wanted = (task.config.train.best_by, task.headline.key)
    key = next((key for key in wanted if key in metrics and key != LOSS.key), None)
    if key is None:
        return None
    count = sum(1 for _ in chain(*task.references))
    spread = islice(chain(*task.references), 0, None, max(1, count // EXAMPLES))  # files may be sorted by their labels
    measure, scores = find_measure(task, key), trivial_scores(list(spread), metrics[key])
    if not scores:
        return None
    answer = (max if measure.higher_is_better else min)(scores, key=lambda name: scores[name])
    return Floor(measure, scores[answer], answer, _enough_passes(task, model))


def _enough_passes(task: CorpusTask, model: nn.Module) -> float:
    """Passes over the data that the model needs to be worth its size, as `auto` plans a time."""
    embeddings = {id(table.weight) for table in model.modules() if isinstance(table, nn.Embedding)}
    weights = sum(each.numel() for each in model.parameters() if id(each) not in embeddings)
    rows = np.arange(min(MEASURED, len(task.train)))  # the rows of a mixture are no slice
    tokens = max(1.0, len(task.train) * float(np.max(np.asarray(task.train.lengths[rows]), -1).mean()))
    train = task.config.train
    return max(FEWEST_PASSES, enough_tokens(tokens, weights, train.batch_tokens * train.accumulate) / tokens)


def verdict(floor: Floor | None, scores: dict[str, float], *, passes: float, seconds: float, settled: bool = False) -> str:
    """A sentence about the published weights; empty if they have no such score.

    passes: how often training has read the data · seconds: how long it took · settled: it stopped improving, or tuned weights
    that had learnt before
    """
    if floor is None or floor.measure.key not in scores:
        return ""
    score, title = scores[floor.measure.key], floor.measure.title
    compared = f"{title} {score:.1f}, and {floor.answer} gives {floor.value:.1f}"
    ratio = floor.ratio(score)
    if ratio > WEAK:
        return f"verdict: the model has learnt from the data ({compared})"
    found = "nothing useful" if ratio <= USELESS else "little"
    if passes < floor.enough and not settled:
        wanted = seconds * max(MORE, floor.enough / max(0.01, passes))
        advice = f"it has read the data {_times(passes)}: give about {rough_time(wanted)}"
    else:
        advice = "more time alone will hardly help: check the data, or add more of it"
    return f"verdict: the model has learnt {found} ({compared}); {advice}"


def _times(passes: float) -> str:
    """The number of passes over the data, in words."""
    if passes < 1:
        return f"{passes:.2g} times" if passes >= 0.01 else "hardly at all"
    return "once" if passes < 2 else f"{int(passes)} times"
