"""The verdict on a trained model, and the floors it is compared with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import tiny
from weft.evaluation.metrics import ExactMatch, Ter
from weft.evaluation.trivial_baselines import CONSTANT, COPY, trivial_scores
from weft.tasks.base import Measure
from weft.tasks.tagging.data import join_words
from weft.tasks.tagging.metrics import EntityF1
from weft.training.verdict import Floor, verdict

FLOOR = Floor(Measure("chrf2", "chrF2"), 15.0, CONSTANT)


def test_the_floors_are_those_of_a_copy_and_of_the_best_constant_answer() -> None:
    examples = [("a b", "a b"), ("a c", "x"), ("a d", "x"), ("e f", "y"), ("g h", "z")]
    assert trivial_scores(examples, ExactMatch()) == {COPY: 20.0, CONSTANT: 40.0}
    worse = trivial_scores([("a b c", "a b c"), ("d e", "f g")], Ter())
    assert worse[COPY] < worse[CONSTANT], "of an error rate, the lowest is the best"
    assert trivial_scores([], ExactMatch()) == {}


def test_answers_that_a_metric_cannot_read_are_left_out() -> None:
    examples = [(join_words(["she", "sat"]), join_words(["B-PER", "O"]))] * 2
    assert trivial_scores(examples, EntityF1()) == {CONSTANT: 100.0}


@pytest.mark.parametrize(
    ("score", "passes", "says"),
    [
        (16.0, 2, "has learnt nothing useful (chrF2 16.0, and the same answer to every input gives 15.0)"),
        (16.0, 0.1, "it has read the data 0.1 times: give about 17 hours"),
        (16.0, 2, "it has read the data 2 times: give about 50 minutes"),
        (16.0, 24, "it has read the data 24 times: give about 8 minutes"),
        (24.0, 40, "has learnt little"),
        (24.0, 40, "more time alone will hardly help"),
        (60.0, 2, "has learnt from the data (chrF2 60.0, and the same answer to every input gives 15.0)"),
    ],
)
def test_a_verdict_compares_with_the_floor_and_says_what_to_do(score: float, passes: float, says: str) -> None:
    assert says in verdict(FLOOR, {"chrf2": score}, passes=passes, seconds=240)


def test_more_time_is_no_advice_for_training_that_stopped_improving() -> None:
    words = verdict(FLOOR, {"chrf2": 16.0}, passes=2, seconds=240, settled=True)
    assert "more time alone will hardly help" in words and "give about" not in words


def test_there_is_no_verdict_without_a_floor_or_a_score() -> None:
    assert verdict(None, {"chrf2": 3.0}, passes=1, seconds=1) == "" == verdict(FLOOR, {"loss": 3.0}, passes=1, seconds=1)


def test_training_ends_with_a_verdict(tmp_path: Path) -> None:
    settings = {"train.steps": 2, "train.validate_sentences": 10, "train.validate_every": 0}
    result = tiny.train(tmp_path / "run", settings=settings)
    assert result.verdict.startswith("verdict: the model has learnt nothing useful")
    assert result.verdict in (tmp_path / "run" / "train.log").read_text()
