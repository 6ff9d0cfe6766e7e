"""Fuzzy matches as forced prefix, required terms or prompt: which words are taken, and what the search receives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.decoding.beam_search import BeamSearch
from weft.decoding.ctc_decoding import CtcSearch
from weft.decoding.greedy_search import GreedySearch
from weft.decoding.sampling import SampleSearch
from weft.runs.translator import Translator, load
from weft.tasks.translation.attention_alignment import units
from weft.tasks.translation.fuzzy_matches import FuzzyMatches, matched_words, usual_use
from weft.tasks.translation.term_placement import AlignedPair
from weft.tasks.translation.translation_memory import MemoryMatch


@pytest.fixture(scope="module")
def translator(reverse_run: Path) -> Translator:
    return load(reverse_run, device="cpu")


def pair(source: str, target: str, links: list[int]) -> AlignedPair:
    """Each target word linked with the source word of this number."""
    ours, theirs = units(source), units(target)
    weights = np.full((len(theirs), len(ours)), 0.1, np.float32)
    weights[np.arange(len(theirs)), links] = 0.9
    return AlignedPair(source, ours, target, theirs, weights)


def inputs(translator: Translator, text: str, match: MemoryMatch, use: str, **fields: Any) -> tuple[Any, Any]:
    predictor: Any = translator.predictor(fuzzy=use)
    return predictor, predictor.parse_input(text, match=match, **fields)


def test_words_that_belong_to_shared_words() -> None:
    match = MemoryMatch("open the old file now", "jetzt die alte Datei öffnen", 0.8)
    aligned = pair(match.source, match.target, [4, 1, 2, 3, 0])
    assert matched_words("open the new file now", match, aligned) == [True, True, False, True, True]
    assert matched_words("close everything", match, aligned) == [False] * 5
    reordered = matched_words("now open the old file", match, aligned)
    assert reordered == [False, True, True, True, True]  # one word left its place, the others kept their order


@pytest.mark.parametrize(
    ("links", "prefix", "terms"),
    [
        ([0, 1, 2, 3, 4], "a b c", ("a b c",)),
        ([3, 0, 1, 2, 4], "", ("b c d e",)),
        ([0, 1, 3, 2, 4], "a b", ("a b", "d e")),
    ],
)
def test_what_the_search_receives(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, links: list[int], prefix: str, terms: tuple[str, ...]
) -> None:
    match = MemoryMatch("a b c d e", "a b c d e", 0.8)
    monkeypatch.setattr(FuzzyMatches, "_aligned", lambda *_: [pair(match.source, match.target, links)])
    predictor, given = inputs(translator, "a b c h e", match, "prefix")
    assert predictor.additions.applied([given])[0].prefix == prefix
    predictor, given = inputs(translator, "a b c h e", match, "terms")
    assert predictor.additions.applied([given])[0].terms.use == terms


def test_what_a_user_requires_comes_first(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FuzzyMatches, "_aligned", lambda *_: 1 / 0)
    match = MemoryMatch("a b c d", "d c b a", 0.75)
    for fields in ({"prefix": "h"}, {"attention": True}):
        predictor, given = inputs(translator, "a b c h", match, "prefix", **fields)
        assert predictor.additions.applied([given]) == [given]
    predictor, given = inputs(translator, "a b c h", match, "report")
    assert predictor.additions.applied([given]) == [given]


def test_auto_forces_a_prefix_where_the_search_accepts_one(translator: Translator) -> None:
    searches: list[Any] = [BeamSearch, GreedySearch, SampleSearch, CtcSearch]
    assert [usual_use(search) for search in searches] == ["prefix", "prefix", "prefix", "report"]
    predictor: Any = translator.predictor()
    assert predictor.additions.fuzzy.use == "prefix", "the default"


def test_a_prompt_is_read_and_not_shown(translator: Translator) -> None:
    match = MemoryMatch("a b", "b a", 0.75)
    predictor, given = inputs(translator, "a b c", match, "prompt")
    ((segment,),) = predictor.encode_input([given], 1)
    assert predictor.source.decode(segment.ids[:-1]) == "a b a b c" and predictor.target.decode(segment.prefix) == "b a"
    (shown,) = translator.stream(["a b c"], matches=[match], fuzzy="prompt")
    assert not shown.text.startswith("b a ") and len(shown.source_tokens) == 4
    # The model reads what a text of both has: the rest of its translation after that prefix.
    (whole,) = translator.stream(["a b a b c"], prefixes=["b a"])
    assert whole.text == f"b a {shown.text}".strip()


def test_a_match_of_several_sentences_requires_no_terms(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    match = MemoryMatch("a b c! d e?", "e d c b a", 0.8)
    monkeypatch.setattr(FuzzyMatches, "_aligned", lambda *_: [pair(match.source, match.target, [0, 1, 2, 3, 4])])
    text = "a b c! d h?"
    (shown,), (plain,) = translator.stream([text], matches=[match], fuzzy="terms"), translator.stream([text])
    assert len(shown.parts) == 2 and shown.text == plain.text


def test_real_attention_finds_the_beginning(translator: Translator) -> None:
    # The run reverses, so the end of a text is the beginning of its translation, and nothing is forced for another end.
    match = MemoryMatch("a b c d e f", "f e d c b a", 5 / 6)
    predictor, given = inputs(translator, "a b c d e h", match, "prefix")
    assert predictor.additions.applied([given])[0].prefix == ""
    (shown,) = translator.stream(["a b c d e h"], matches=[match], fuzzy="prefix")
    assert shown.text == "h e d c b a" and shown.match == match
