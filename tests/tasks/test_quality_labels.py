"""Labels of translations: chrF, and OK or BAD for each word by an alignment of least edits."""

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise
from random import Random

import pytest

from weft.errors import DataError
from weft.evaluation.metrics import Chrf
from weft.tasks.quality.labels import BAD, OK, label_translations, parse_tags, word_tags, words_of


def distance(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """Levenshtein's distance by its definition."""

    @cache
    def between(i: int, j: int) -> int:
        if not (i and j):
            return i + j
        return min(between(i - 1, j) + 1, between(i, j - 1) + 1, between(i - 1, j - 1) + (first[i - 1] != second[j - 1]))

    return between(len(first), len(second))


def matched(first: tuple[str, ...], second: tuple[str, ...]) -> set[tuple[str, ...]]:
    """The tags of every alignment of least edits: all monotone matchings of equal words, as bad edits cost what is left."""
    found = set()
    for count in range(min(len(first), len(second)) + 1):
        for here in combinations(range(len(first)), count):
            for there in combinations(range(len(second)), count):
                if any(first[i] != second[j] for i, j in zip(here, there, strict=True)):
                    continue
                ends = [(-1, -1), *zip(here, there, strict=True), (len(first), len(second))]
                cost = sum(max(b - a - 1, d - c - 1) for (a, c), (b, d) in pairwise(ends))
                if cost == distance(first, second):
                    found.add(tuple(OK if place in here else BAD for place in range(len(first))))
    return found


def test_tags_are_those_of_an_alignment_of_least_edits() -> None:
    random = Random(3)
    for _ in range(300):
        first, second = (tuple(random.choices("abc", k=random.randint(0, 5))) for _ in range(2))
        assert tuple(word_tags(first, second)) in matched(first, second)


def test_a_word_is_bad_if_the_reference_does_not_have_it_there() -> None:
    assert word_tags(["the", "dog", "runs", "fast", "."], ["the", "cat", "runs", "."]) == [OK, BAD, OK, BAD, OK]
    assert word_tags(["a"], []) == [BAD] and word_tags([], ["a"]) == []


def test_the_score_is_sentence_chrf_and_words_are_runs_of_letters_and_marks() -> None:
    (label,) = label_translations(["Ein Hund läuft."], ["Ein Hund rennt."])
    assert label.score == pytest.approx(Chrf().score(Chrf().count(["Ein Hund läuft."], ["Ein Hund rennt."])).value)
    assert label.joined == "OK OK BAD OK" and words_of("Ein Hund läuft.") == ["Ein", "Hund", "läuft", "."]
    assert words_of("你好!") == ["你", "好", "!"]
    assert label_translations([], []) == []


def test_tags_are_read_for_words_or_for_runs_between_spaces() -> None:
    assert parse_tags("OK BAD OK", "a b.") == [OK, BAD, OK]
    assert parse_tags("OK BAD", "ab cd.") == [OK, BAD, BAD]
    with pytest.raises(DataError, match="'GOOD' is neither OK nor BAD"):
        parse_tags("OK GOOD OK", "a b.")
    with pytest.raises(DataError, match="there are 4 tags for the 3 words"):
        parse_tags("OK OK OK OK", "a b.")
