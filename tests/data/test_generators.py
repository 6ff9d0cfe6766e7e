"""Generated data: solvable, reproducible, and with test data that training never sees."""

from __future__ import annotations

import re
import unicodedata
from datetime import date
from itertools import islice
from typing import get_args

import pytest

from weft.config.registry import find_table
from weft.data.formats import open_pairs
from weft.data.generators import DIGITS, GENERATORS, LANGUAGES, PairGenerator, Split, patterns, write_date
from weft.errors import DataError
from weft_studies.synthetic import NOUNS, attractors

KINDS = [kind for kind in find_table(GENERATORS) if kind != "babi"]
LONG_RANGE = ("listops", "recall", "distant_copy", "bits_anb2n")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_pairs_at_every_reading(kind: str) -> None:
    task = PairGenerator(kind, count=50, seed=3)
    assert list(task) == list(task) == list(islice(PairGenerator(kind, count=900, seed=3), 50))
    assert list(task) != list(PairGenerator(kind, count=50, seed=4))
    assert len(list(task)) == len(task) == 50
    assert list(open_pairs(f"generated:{kind}?count=50&seed=3")) == list(task)


def about(kind: str, source: str, target: str) -> str:
    """The subject that must not occur in another split: the day, the sorted letters, the two numbers."""
    if kind == "addition":
        return "+".join(sorted(source.split("+")))
    return target if kind in ("dates", "sort", "distant_copy") else source


@pytest.mark.parametrize("kind", KINDS)
def test_splits_never_share_a_subject(kind: str) -> None:
    splits: dict[Split, set[str]] = {}
    for seed, split in enumerate(get_args(Split)):
        pairs = PairGenerator(kind, count=1500, seed=seed, split=split, longest=20 if kind in LONG_RANGE else 3)
        splits[split] = {about(kind, *pair) for pair in pairs}
    assert all(splits.values())
    assert not splits["train"] & splits["valid"]
    assert not splits["train"] & splits["test"]
    assert not splits["valid"] & splits["test"]


def test_answers_are_right() -> None:
    for source, target in PairGenerator("copy", count=100):
        assert target == source
    for source, target in PairGenerator("reverse", count=100):
        assert target.split() == source.split()[::-1]
    for source, target in PairGenerator("sort", count=100):
        assert target.split() == sorted(source.split())
    for source, target in PairGenerator("addition", count=100):
        first, second = source.split("+")
        assert int(target) == int(first) + int(second)
    lengths = {len(source.split()) for source, _ in PairGenerator("copy", count=500, longest=4)}
    assert lengths == {1, 2, 3, 4}


def value_of(tokens: list[str]) -> int:
    """The value of a ListOps expression, parsed from left to right."""
    begun: list[tuple[str, list[int]]] = [("", [])]
    for token in tokens:
        if token.startswith("["):
            begun.append((token, []))
            assert len(begun) <= 10
            continue
        value = _result(*begun.pop()) if token == "]" else int(token)
        begun[-1][1].append(value)
    ((_, (value,)),) = begun
    return value


def _result(operation: str, values: list[int]) -> int:
    assert 2 <= len(values) <= 10
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return {"[MIN": min(values), "[MAX": max(values), "[MED": sum(middle) // len(middle), "[SM": sum(values) % 10}[operation]


def test_expressions_have_the_value_of_their_label_and_the_requested_length() -> None:
    pairs = list(PairGenerator("listops", count=200, longest=100))
    assert all(value_of(source.split()) == int(target) for source, target in pairs)
    lengths = [len(source.split()) for source, _ in pairs]
    assert 25 <= min(lengths) < 35
    assert 80 < max(lengths) <= 100
    assert {target for _, target in pairs} == set("0123456789")
    assert {token for source, _ in pairs for token in source.split()} == {*"0123456789", "]", "[MIN", "[MAX", "[MED", "[SM"}
    (longer,) = PairGenerator("listops", count=1, longest=2000, shortest=500)
    assert 500 <= len(longer[0].split()) <= 2000
    assert value_of(longer[0].split()) == int(longer[1])


@pytest.mark.parametrize("longest", [20, 200])
def test_recall_asks_for_the_value_of_a_key(longest: int) -> None:
    lengths = set()
    for source, target in PairGenerator("recall", count=200, longest=longest):
        *known, mark, asked = source.split()
        keys, values = known[::2], known[1::2]
        assert mark == "?"
        assert len(set(keys)) == len(keys) == len(values)
        assert target == values[keys.index(asked)]
        lengths.add(len(source.split()))
    assert longest // 4 <= min(lengths) <= longest // 3
    assert max(lengths) == longest


def test_a_verb_agrees_with_the_first_noun_over_any_distance() -> None:
    distances, nearest, counts, leads = set(), [], set(), []
    for source, target in PairGenerator("agreement", count=500, longest=14, shortest=3):
        lead, _, clause = source.rpartition(", ")
        words = clause.split()
        nouns = [word for word in words if word.removesuffix("s") in NOUNS]
        leads.append(len(lead.split()))
        assert words[0] == "the" and words[1] == nouns[0]
        assert target == ("are" if nouns[0].endswith("s") else "is")
        assert attractors(source) == sum(noun.endswith("s") != nouns[0].endswith("s") for noun in nouns)
        distances.add(len(words) - 2)
        counts.add(attractors(source))
        nearest.append(nouns[-1].endswith("s") == (target == "are"))
    assert distances == set(range(3, 15)) and counts >= {0, 1, 2, 3}
    assert 0.4 < sum(nearest) / len(nearest) < 0.65, "the nearest noun says nothing"
    assert set(leads) == {0, 3, 4} and 150 < leads.count(0) < 350, "the noun is not always at the same place"
    assert {len(source.rpartition(", ")[2].split()) for source, _ in PairGenerator("agreement", count=500)} == set(range(2, 15))


def test_copies_come_from_far_away() -> None:
    lengths = set()
    for source, target in PairGenerator("distant_copy", count=300, longest=60, shortest=40):
        letters, mark = source.split(" .")[0], source.split()[-1]
        assert mark == "?"
        assert target == letters
        assert set(source.split()[len(letters.split()) : -1]) == {"."}
        lengths.add(len(source.split()))
    assert lengths == set(range(40, 61))


def test_dates_are_valid_and_their_numbers_are_in_the_text() -> None:
    digits = {ord(digit): str(value) for row in DIGITS.values() for value, digit in enumerate(row)}
    written = set()
    for source, target in PairGenerator("dates", count=2000):
        day = date.fromisoformat(target)
        assert 1900 <= day.year <= 2099
        numbers = [int(number) for number in re.findall(r"\d+", source.translate(digits))]
        assert day.year in numbers
        assert day.day in numbers
        written.update(set(source) & {chr(code) for code in digits})
    assert len(written) == 50


def test_many_languages_with_several_formats() -> None:
    assert len(set(LANGUAGES)) >= 30
    assert all(len(patterns(language)) >= 3 for language in LANGUAGES)


def test_no_text_means_two_dates() -> None:
    """Every day up to the 12th of every month, where day and month could be confused, in every format."""
    meaning: dict[str, date] = {}
    for language in LANGUAGES:
        for pattern in patterns(language):
            for month in range(1, 13):
                for day in (1, 2, 5, 9, 11, 12):
                    when = date(2025, month, day)
                    text = write_date(when, language, pattern)
                    assert meaning.setdefault(text, when) == when, text
                    assert not re.search(r"^\d+[/-]\d+[/-]\d{4}", text), "in another country this is another day"


def letters(text: str) -> str:
    """A date without digits and punctuation."""
    kept = "".join(" " if unicodedata.category(character)[0] in "NPZC" else character for character in text.lower())
    return " ".join(kept.split())


def test_month_names_mean_one_month_in_all_languages() -> None:
    """The name of a month is unambiguous, without a dot that only some languages write."""
    meaning: dict[str, int] = {}
    for language in LANGUAGES:
        for pattern in patterns(language):
            names = [letters(write_date(date(2025, month, 7), language, pattern)) for month in range(1, 13)]
            if "E" not in pattern and "c" not in pattern and len(set(names)) == 12:
                for month, name in enumerate(names, start=1):
                    assert meaning.setdefault(name, month) == month, (language, name)
    assert len(meaning) > 12 * 35
    assert meaning["listopada"] == 11


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("generated:date", "did you mean 'dates'"),
        ("generated:copy?cuont=3", "did you mean 'count'"),
        ("generated:copy?count=many", "must be an integer"),
        ("generated:copy?count=0", "at least 1"),
        ("generated:copy?split=tst", "did you mean 'test'"),
        ("generated:copy?shortest=5&longest=4", "longest must be at least shortest=5"),
    ],
)
def test_misspelt_tasks_are_errors_that_help(spec: str, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        open_pairs(spec)


def test_every_option_changes_the_digest() -> None:
    specs = ["copy", "sort", "copy?count=9", "copy?seed=9", "copy?split=test", "copy?longest=9", "copy?longest=9&shortest=2"]
    assert len({open_pairs(f"generated:{spec}").digest() for spec in specs}) == len(specs)


def test_a_length_that_no_expression_has_is_an_error() -> None:
    with pytest.raises(DataError, match="no expression of 3 to 3 tokens was found"):
        next(iter(PairGenerator("listops", longest=3, shortest=3)))


def test_a_split_without_any_pair_is_an_error() -> None:
    """There is one text of this length, and it belongs to one of the splits."""
    said = []
    for split in get_args(Split):
        try:
            list(open_pairs(f"generated:bits_anbn?count=3&shortest=1&longest=1&split={split}"))
        except DataError as error:
            said.append(str(error))
    assert len(said) == len(get_args(Split)) - 1 and all(
        "no pair found" in each and "increase `longest`" in each for each in said
    )
