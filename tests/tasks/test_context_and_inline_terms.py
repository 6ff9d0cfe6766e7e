"""Document context and inline terms: what the model reads, and that neither shows in the translation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.data.batch import UNK
from weft.data.changed_copies import CONTEXT
from weft.runs.translator import Translator, load
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.predictor import TranslationPredictor
from weft.tasks.translation.translation_memory import MemoryMatch


@pytest.fixture(scope="module")
def translator(reverse_run: Path) -> Translator:
    return load(reverse_run, device="cpu")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the model reads: texts of segments' ids, and the texts that are shown as theirs."""
    seen: list[tuple[str, str]] = []
    real = TranslationPredictor.encode_input

    def encode(predictor: Any, inputs: Any, first: int) -> Any:
        groups = real(predictor, inputs, first)
        seen.extend((predictor.source.decode(each.ids[:-1]), each.text) for group in groups for each in group)
        return groups

    monkeypatch.setattr(TranslationPredictor, "encode_input", encode)
    return seen


def test_lines_before_a_line_are_read_with_it(translator: Translator, read: list[tuple[str, str]]) -> None:
    assert UNK in translator.source.encode(CONTEXT)  # this run was not trained so
    outputs = list(translator.stream(iter(["a b", "c", "d e"]), context=1))
    assert [text.replace("  ", " ") for text, _ in read] == ["a b", "a b c", "c d e"]
    assert [each.source_tokens[:-1] for each in outputs] == [["a", "b"], ["c"], ["d", "e"]]
    read.clear()
    list(translator.stream(["a", "b", "c d"], context=2))
    assert read[2][0] == "a b c d"
    read.clear()
    list(translator.stream(["a", "b"], context=0))
    assert [text for text, _ in read] == ["a", "b"]


def test_terms_are_shown_in_the_source(translator: Translator, read: list[tuple[str, str]]) -> None:
    terms = Terms(use=("h", "g"), avoid=("f",), sources=(("b", "h"),))
    predictor: Any = translator.predictor(term_use="inline")
    given = predictor.parse_input("a b c", terms=terms)
    ((segment,),) = predictor.encode_input([given], 1)
    assert segment.text == "a b ⟦h⟧ c" and segment.terms == Terms(use=("g",), avoid=("f",))
    required: Any = translator.predictor()
    ((segment,),) = required.encode_input([required.parse_input("a b c", terms=terms)], 1)
    assert segment.text == "a b c" and segment.terms.use == ("h", "g")


def test_a_memory_without_the_term_is_not_taken(translator: Translator) -> None:
    match = MemoryMatch("a b c", "c b a", 1.0, exact=True)
    terms = Terms(use=("h",), sources=(("b", "h"),))
    (shown,) = translator.stream(["a b c"], matches=[match], terms=[terms], sentences="off")
    assert not shown.from_memory
    predictor: Any = translator.predictor(term_use="inline")
    (shown,) = predictor.predict([predictor.parse_input("a b c", match=match, terms=terms)])
    assert not shown.from_memory and shown.text
