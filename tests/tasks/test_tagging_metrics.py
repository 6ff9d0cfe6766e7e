"""Schemes of entities, conversion between them, and scores that equal those of seqeval."""

from __future__ import annotations

import random

import pytest

from weft.errors import DataError
from weft.evaluation.metrics import score
from weft.tasks.tagging.metrics import (
    Entity,
    EntityF1,
    EntityPrecision,
    EntityRecall,
    TagAccuracy,
    UnknownAccuracy,
    convert,
    find_entities,
)

IOB2 = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-LOC", "I-LOC", "O"]
BIOES = ["B-PER", "E-PER", "O", "S-LOC", "B-LOC", "I-LOC", "E-LOC", "O"]


def test_entities_are_found_in_any_scheme() -> None:
    found = [Entity(0, 2, "PER"), Entity(3, 4, "LOC"), Entity(4, 7, "LOC")]
    assert find_entities(IOB2) == find_entities(BIOES) == found
    assert find_entities(["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-LOC", "I-LOC", "O"]) == found, "IOB1"
    assert find_entities(["O", "I-PER", "I-LOC", "B-LOC"]) == [Entity(1, 2, "PER"), Entity(2, 3, "LOC"), Entity(3, 4, "LOC")]
    assert find_entities([]) == []


def test_schemes_are_converted_both_ways() -> None:
    assert convert(IOB2, "bioes") == BIOES
    assert convert(BIOES, "iob2") == IOB2
    assert convert(["I-PER", "O"], "iob2") == ["B-PER", "O"]


@pytest.mark.parametrize("tag", ["NOUN", "B", "B-", "X-LOC", ""])
def test_a_tag_of_no_scheme_is_refused(tag: str) -> None:
    with pytest.raises(DataError, match=r"is not one of an entity.*task.entities: none"):
        find_entities([tag])


def text(tags: list[str]) -> str:
    return "\n".join(f"w{place}\t{tag}" for place, tag in enumerate(tags))


@pytest.mark.parametrize("prefixes", ["BI", "BIES"])
def test_scores_of_entities_equal_those_of_seqeval(prefixes: str) -> None:
    """On random tags, most of which no scheme would write."""
    from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

    draw = random.Random(0)
    names = ["O", "O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in ("LOC", "PER"))]
    true = [draw.choices(names, k=draw.randint(1, 12)) for _ in range(300)]
    said = [[tag if draw.random() < 0.7 else draw.choice(names) for tag in tags] for tags in true]
    metrics = [EntityF1(), EntityPrecision(), EntityRecall(), TagAccuracy()]
    found = {name: each.value for name, each in score(list(map(text, said)), list(map(text, true)), metrics).items()}
    assert found["F1"] == pytest.approx(100 * f1_score(true, said))
    assert found["precision"] == pytest.approx(100 * precision_score(true, said))
    assert found["recall"] == pytest.approx(100 * recall_score(true, said))
    assert found["accuracy"] == pytest.approx(100 * accuracy_score(true, said))
    assert 20 < found["F1"] < 80


def test_words_that_training_does_not_have_are_scored_by_themselves() -> None:
    metric = UnknownAccuracy({"a", "b"})
    counts = metric.count(["a\tX\nnew\tY\nodd\tX", "b\tX"], ["a\tY\nnew\tY\nodd\tY", "b\tX"])
    assert counts.tolist() == [[1, 2], [0, 0]]
    assert metric.score(counts).value == 50


def test_missing_predictions_are_wrong_and_no_entities_score_nothing() -> None:
    assert TagAccuracy().count([""], ["a\tX\nb\tY"]).tolist() == [[0, 2]]
    assert EntityF1().score(EntityF1().count(["a\tO"], ["a\tO"])).value == 0
