"""Word links, the Pharaoh format and AER."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import DataError
from weft.tasks.translation.attention_alignment import usual_layer
from weft.tasks.translation.word_alignment import Gold, agreement, parse_gold, pharaoh, word_links

SURE, POSSIBLE = frozenset({(0, 0), (1, 2)}), frozenset({(0, 0), (1, 2), (2, 1)})


def test_agreement_by_hand() -> None:
    """A = {0-0, 2-1, 1-1, 3-3} has one of two sure links, and two of its four are possible: AER = 1 − (1 + 2) / (4 + 2)."""
    found = agreement([{(0, 0), (2, 1), (1, 1), (3, 3)}], [Gold(SURE, POSSIBLE)])
    assert found.aer == pytest.approx(0.5)
    assert found.precision == pytest.approx(0.5)
    assert found.recall == pytest.approx(0.5)


def test_agreement_counts_links_over_all_sentences() -> None:
    gold = [Gold(SURE, POSSIBLE), Gold(frozenset({(0, 0)}), frozenset({(0, 0)}))]
    found = agreement([{(0, 0), (1, 2)}, {(0, 1)}], gold)
    assert found.aer == pytest.approx(1 - (2 + 2) / (3 + 3))
    assert agreement([set(SURE), {(0, 0)}], gold).aer == 0
    assert agreement([set(), set()], gold).aer == 1


def test_gold_links_are_parsed() -> None:
    assert parse_gold("0-0 1-2 2p1", "gold") == Gold(SURE, POSSIBLE)
    assert parse_gold("0-0 1-2 2?1", "gold") == Gold(SURE, POSSIBLE)
    assert parse_gold("", "gold") == Gold(frozenset(), frozenset())
    for bad in ("0:1", "a-b", "1-", "-1-2"):
        with pytest.raises(DataError, match=f"gold, line 3: '{bad}' is not a link"):
            parse_gold(f"0-0 {bad}", "gold, line 3")


def test_each_target_word_links_to_the_source_word_it_attends_to_most() -> None:
    weights = np.array([[0.4, 0.3, 0.3, 0.0], [0.0, 0.3, 0.3, 0.4], [0.9, 0.0, 0.1, 0.0], [1, 0, 0, 0]], np.float32)
    source, target = [(0, 1), (1, 3)], [(0, 2), (2, 3)]  # the last token of both sides is EOS, which is not a word
    assert word_links(weights, source, target) == {(1, 0), (0, 1)}
    assert pharaoh({(1, 0), (0, 1), (0, 0)}) == "0-0 0-1 1-0"
    assert word_links(weights, [], target) == set()


def test_the_default_layer() -> None:
    assert [usual_layer(count) for count in (1, 2, 3, 6)] == [0, 0, 1, 4]
