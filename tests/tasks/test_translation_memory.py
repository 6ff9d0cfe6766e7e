"""Translation memories: exact and similar entries, beside a loop over all of them; and their place in a translation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from weft.errors import DataError
from weft.runs.translator import load, open_memory
from weft.tasks.translation.glossary import Terms
from weft.tasks.translation.translation_memory import MemoryMatch, TranslationMemory, edit_distance, split_words

WORDS = ["a", "b", "c", "d", "e", "f", "g", "the", "of", ",", "."]


def levenshtein(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """The recursion of Levenshtein (1966)."""
    row = list(range(len(theirs) + 1))
    for i, one in enumerate(ours, start=1):
        before, row = row, [i]
        for j, other in enumerate(theirs, start=1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (one != other)))
    return row[-1]


def sentences(count: int, seed: int, longest: int = 9) -> list[str]:
    rng = random.Random(seed)
    weights = [1, 1, 1, 2, 2, 4, 4, 20, 20, 20, 30]
    return [" ".join(rng.choices(WORDS, weights, k=rng.randint(1, longest))) for _ in range(count)]


def test_the_edit_distance_is_that_of_the_recursion() -> None:
    for one, other in zip(sentences(400, 1, 90), sentences(400, 2, 90)):
        assert edit_distance(one.split(), other.split()) == levenshtein(one.split(), other.split())
    assert edit_distance([], ["a"]) == edit_distance(["a"], []) == 1


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9, 1.0])
def test_the_index_finds_the_most_similar_entry(threshold: float) -> None:
    known = list(dict.fromkeys(sentences(300, 3, 14)))
    memory = TranslationMemory(((text, text.upper()) for text in known), threshold)
    found = missing = 0
    changed = [f"{text.removesuffix(' .')} zzz" for text in known[:100]]
    for text in [*sentences(200, 4, 14), *changed, *known[:10], "zzz yyy"]:
        words = split_words(text)
        scores = [1 - levenshtein(words, other.split()) / max(len(words), len(other.split())) for other in known]
        match = memory.find(text)
        if max(scores) < threshold - 1e-9:
            assert match is None, (text, match)
            missing += 1
        else:
            assert match is not None and match.score == pytest.approx(max(scores)), (text, match)
            assert match.target == match.source.upper() and match.exact == (text in known)
            found += not match.exact
    assert missing and (found or threshold == 1.0)


def test_equal_sources() -> None:
    memory = TranslationMemory([("a  b ", "first"), ("a b", " last"), ("e\u0301", "accent"), ("", "none"), ("c", " ")])
    assert len(memory) == 2
    assert memory.find(" a b") == MemoryMatch("a b", "last", 1.0, exact=True)
    assert memory.find("\u00e9") == MemoryMatch("\u00e9", "accent", 1.0, exact=True)
    assert memory.find("") is None and memory.find("c") is None and TranslationMemory([]).find("a") is None


def test_entries_of_several_lines_are_known_line_by_line() -> None:
    memory = TranslationMemory([("one\ntwo", "eins\nzwei"), ("three\nfour", "drei vier")])
    assert [match.target if (match := memory.find(text)) else None for text in ("one\ntwo", "two", "three")] == [
        "eins\nzwei",
        "zwei",
        None,
    ]


def test_words() -> None:
    expected = ["Don", "'", "t", "«", "go", "»", ":", "3", ".", "5", "%", ",", "नमस्ते", "!"]
    assert split_words("Don't «go»: 3.5 %, नमस्ते!") == expected
    assert split_words("我爱 you。") == ["我", "爱", "you", "。"]


def test_a_translation_from_the_memory(reverse_run: Path) -> None:
    memory = TranslationMemory([("a b c", "x y z"), ("a b c d e f", "not used")])
    translator = load(reverse_run, device="cpu")
    lines = ["a b c", "a b c d e h", "h"]
    exact, fuzzy, none = translator.stream(lines, matches=map(memory.find, lines))
    assert exact.text == "x y z" and exact.document() | {"tokens": []} == {
        "text": "x y z",
        "score": 0.0,
        "tokens": [],
        "memory": "exact",
    }
    assert fuzzy.text == "h e d c b a" and not fuzzy.from_memory
    assert fuzzy.document()["memory"] == "fuzzy"
    assert fuzzy.document()["match"] == {"score": 0.8333, "source": "a b c d e f", "target": "not used"}
    assert none.text == "h" and "memory" not in none.document()


def test_an_entry_without_what_the_translation_needs_is_not_taken(reverse_run: Path) -> None:
    memory, translator = TranslationMemory([("a b c", "c b x")]), load(reverse_run, device="cpu")

    def translated(**fields: object) -> tuple[str, bool]:
        settings = {name: [value] for name, value in fields.items()}
        (found,) = translator.stream(["a b c"], matches=[memory.find("a b c")], **settings)  # type: ignore[arg-type]
        return found.text, found.from_memory

    assert translated() == ("c b x", True)
    assert translated(prefixes="c b") == ("c b x", True)
    assert translated(prefixes="c b a") == ("c b a", False)
    assert translated(terms=Terms(use=("x",))) == ("c b x", True)
    assert not translated(terms=Terms(use=("a",)))[1]
    assert not translated(terms=Terms(avoid=("x",)))[1]


TMX = """<tmx version="1.4"><header srclang="{0}"/><body>
<tu><tuv xml:lang="{0}"><seg>a b</seg></tuv><tuv xml:lang="{1}"><seg>y x</seg></tuv></tu></body></tmx>"""


def test_a_memory_is_read_in_the_languages_of_the_run(reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.tmx").write_text(TMX.format("de-DE", "en"), encoding="utf-8")
    translator = load(reverse_run, device="cpu", set=["data.source_language=en", "data.target_language=de"])
    match = open_memory(translator, [str(tmp_path / "memory.tmx")]).find("y x")
    assert match is not None and match.target == "a b"
    match = open_memory(translator, [f"{tmp_path / 'memory.tmx'}#de,en"]).find("a b")
    assert match is not None and match.target == "y x"
    other = load(reverse_run, device="cpu", set=["data.source_language=en", "data.target_language=fr"])
    with pytest.raises(DataError, match="no unit has texts in both en and fr"):
        open_memory(other, [str(tmp_path / "memory.tmx")])
