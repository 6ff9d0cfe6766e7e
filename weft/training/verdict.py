"""The verdict on a trained model in words: its validation score next to that of trivial answers, and what to do about it."""

from dataclasses import dataclass
from itertools import chain, islice

from weft.evaluation.floors import EXAMPLES, trivial_scores
from weft.tasks.base import LOSS, Measure, Task, find_measure
from weft.tasks.corpus_task import CorpusTask
from weft.training.auto.choose_settings import ENOUGH_PASSES
from weft.training.log_text import rough_time

USELESS, WEAK = 1.15, 2.0
"""A score up to this many times that of a trivial answer says that the model has learnt nothing useful, or little."""

LEAST = 2.0
"""A gain of fewer points over a trivial answer is nothing useful either."""


@dataclass(frozen=True)
class Floor:
    """The best score of trivial answers, the measure it belongs to, and what the answer is."""

    measure: Measure
    value: float
    answer: str

    def ratio(self, score: float) -> float:
        """How many times as good a score is. A gain of a few points over a floor near 0 is not worth more than it."""
        if self.measure.higher_is_better:
            return score / max(self.value, LEAST)
        return max(self.value, LEAST) / max(score, 1e-9)


def find_floor(task: Task) -> Floor | None:
    """The floor of the score by which the run is judged; None if no answers are scored."""
    if not isinstance(task, CorpusTask) or not task.references:
        return None
    metrics = {metric.key(): metric for metric in task.metrics()}
    wanted = (task.config.train.best_by, task.headline.key)
    key = next((key for key in wanted if key in metrics and key != LOSS.key), None)
    if key is None:
        return None
    measure, scores = find_measure(task, key), trivial_scores(list(islice(chain(*task.references), EXAMPLES)), metrics[key])
    if not scores:
        return None
    answer = (max if measure.higher_is_better else min)(scores, key=lambda name: scores[name])
    return Floor(measure, scores[answer], answer)


def verdict(floor: Floor | None, scores: dict[str, float], *, passes: int, seconds: float) -> str:
    """A sentence about the published weights; empty if they have no such score.

    passes: how often training has read the data · seconds: how long it took
    """
    if floor is None or floor.measure.key not in scores:
        return ""
    score, title = scores[floor.measure.key], floor.measure.title
    compared = f"{title} {score:.1f}, and {floor.answer} gives {floor.value:.1f}"
    ratio = floor.ratio(score)
    if ratio > WEAK:
        return f"verdict: the model has learnt from the data ({compared})"
    found = "nothing useful" if ratio <= USELESS else "little"
    if passes < ENOUGH_PASSES:
        wanted = rough_time(seconds * ENOUGH_PASSES / max(1, passes))
        advice = f"it has read the data {'once' if passes < 2 else f'{passes} times'}: give about {wanted}"
    else:
        advice = "more time alone will hardly help: check the data, or add more of it"
    return f"verdict: the model has learnt {found} ({compared}); {advice}"
