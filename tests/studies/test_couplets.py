"""Scores of couplets, on lines that can be judged by eye."""

from __future__ import annotations

from random import Random

import pytest
from sacrebleu.metrics.bleu import BLEU

from weft.errors import DataError
from weft_studies.couplets import mirrors, repeats, score_couplets, shares


def test_repeats_are_mirrored_at_the_same_places() -> None:
    assert mirrors("山外山", "楼中楼") and mirrors("天地", "山水")
    assert not mirrors("山外山", "楼中阁")
    assert not mirrors("山外山", "楼中"), "the place of the repeat is missing"
    assert mirrors("天地人", "楼中楼"), "only the repeats of the first line count"


def test_punctuation_is_neither_repeated_nor_shared() -> None:
    assert repeats("山外山") and not repeats("天，地，人")
    assert shares("天地", "水天") and not shares("天，地", "山，水")


def test_scores_are_shares_of_the_lines_they_are_about() -> None:
    firsts, references = ["山外山", "天，地", "风月", "花"], ["楼中楼", "山，水", "云雨", "鸟"]
    perfect = score_couplets(firsts, references, references)
    assert (perfect.length, perfect.mirrored, perfect.shared) == (100, 100, 0) and perfect.bleu2 == pytest.approx(100)
    found = score_couplets(firsts, ["楼中阁", "山，水", "云月", "鸟鸟"], references)
    assert (found.length, found.mirrored, found.shared) == (75, 0, 25)
    # Counted by hand: 楼中 山，水 云 鸟 are right, and 楼中 山， ，水 are right pairs.
    assert found.bleu2 == pytest.approx(100 * (7 / 10 * 3 / 6) ** 0.5)
    assert score_couplets(["花"], ["鸟"], ["鸟"]).mirrored == 100
    with pytest.raises(DataError, match="2 second lines for 1 first lines"):
        score_couplets(["花"], ["鸟", "鸟"], ["鸟"])


def test_bleu_is_that_of_sacrebleu_to_the_last_bit() -> None:
    random = Random(7)
    lines = [["".join(random.choices("天地山水风月云雨花鸟", k=random.randint(3, 9))) for _ in range(300)] for _ in range(3)]
    firsts, seconds, references = lines
    expected = BLEU(max_ngram_order=2, tokenize="char").corpus_score(seconds, [references]).score
    assert score_couplets(firsts, seconds, references).bleu2 == expected
