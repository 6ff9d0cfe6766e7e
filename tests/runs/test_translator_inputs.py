"""What programs pass instead of text, and the names they see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.runs.translator import Translator


@pytest.fixture(scope="module")
def translator(reverse_run: Path) -> Translator:
    return weft.load(reverse_run, device="cpu")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "texts must be a string or a list of strings, not None"),
        (5, r"texts must be a string or a list of strings, not an int \(5\)"),
        (b"a b", "texts is bytes, not a string; decode it"),
        ({"x": "a b"}, r"not a dict .*list\(texts\.values\(\)\)"),
        (["a b", 5], r"texts\[1\] must be a string, not an int \(5\)"),
        (["a b", None], r"texts\[1\] must be a string, not None"),
        ([["a b"]], r"texts\[0\] must be a string, not a list"),
        ([b"a b"], r"texts\[0\] is bytes"),
        ((line for line in ["a b", 1.5]), r"texts\[1\] must be a string, not a float"),
    ],
)
def test_what_is_not_text_is_told_what_it_is(translator: Translator, given: Any, says: str) -> None:
    with pytest.raises(weft.WeftError, match=says) as caught:
        translator.translate(given)
    assert isinstance(caught.value, TypeError)


def test_no_texts_and_texts_one_by_one_are_fine(translator: Translator) -> None:
    assert translator.translate([]) == []
    assert [each.text for each in translator.translate(text for text in ("a b", "c d"))] == ["b a", "d c"]


def test_prefixes_lines_and_sentences_to_explain_are_checked_too(translator: Translator) -> None:
    with pytest.raises(weft.WeftError, match=r"prefix\[0\] must be a string"):
        translator.translate(["a b"], prefix=[3])  # type: ignore[list-item]
    with pytest.raises(weft.WeftError, match=r"give \[line\]"):
        list(translator.stream("a b"))
    with pytest.raises(weft.WeftError, match="lines must be a string or a list of strings, not None"):
        list(translator.stream(None))  # type: ignore[arg-type]
    with pytest.raises(weft.WeftError, match="line 2 must be a string, not an int"):
        list(translator.stream(iter(["a b", 7])))  # type: ignore[list-item]
    with pytest.raises(weft.WeftError, match="text must be a string, not None"):
        translator.explain(None)  # type: ignore[arg-type]


def test_generating_from_what_is_not_text() -> None:
    from weft.runs.translator import Generator

    with pytest.raises(weft.WeftError, match="prompt must be a string, not None"):
        Generator.generate(Generator.__new__(Generator), None)  # type: ignore[arg-type]


def test_dir_shows_the_whole_interface_without_importing_torch() -> None:
    assert set(weft.__all__) <= set(dir(weft)) and "__version__" in dir(weft)
    assert not {"Any", "annotations", "import_module", "TYPE_CHECKING"} & set(dir(weft))
    assert all(getattr(weft, name) is not None for name in dir(weft) if name in weft.__all__)
    code = "import sys, weft; assert 'load' in dir(weft) and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
