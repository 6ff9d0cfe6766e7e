"""The interface of tasks: facts in `TaskInfo`, also of tasks that were written before it, and measures by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.config.sections import Config
from weft.errors import ConfigError
from weft.tasks.base import LOSS, Measure, TaskContext, TaskInfo, find_measure, typical_length
from weft.tasks.classification.task import ClassificationTask
from weft.tasks.language_modeling.task import LanguageModelTask
from weft.training.prepare_run import max_row_length


def test_attributes_of_older_tasks_become_facts_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="write commands, count_unit into the task's info"):

        class Older(ClassificationTask):
            commands = ("weft predict {run} x",)
            count_unit = "sentences"

    assert Older.info.commands == ("weft predict {run} x",) and Older.info.count_unit == "sentences"
    assert Older.info.inference_kind == "forward", "the other facts are those of its base"
    assert ClassificationTask.info.count_unit == "texts"


def test_a_measure_may_be_named_without_its_number() -> None:
    class Scored(ClassificationTask):
        measures = (Measure("chrf2", "chrF2"), LOSS)

    task = Scored(TaskContext(Config(), Path()))
    assert find_measure(task, "chrf") is find_measure(task, "chrf2") is Scored.measures[0]
    with pytest.raises(ConfigError, match="does not measure 'bleu'; it measures chrf2, loss"):
        find_measure(task, "bleu")


def test_rows_have_the_length_of_texts_or_a_fixed_one() -> None:
    config = Config(data={"max_length": 100})
    texts = ClassificationTask(TaskContext(config, Path()))
    assert (typical_length(texts), max_row_length(texts)) == (100, 101)
    assert max_row_length(texts, rounded=True) >= 101
    running = LanguageModelTask(TaskContext(config, Path()), segment=300)
    assert (typical_length(running), max_row_length(running)) == (300, 300)
    assert TaskInfo().fixed_length is None
