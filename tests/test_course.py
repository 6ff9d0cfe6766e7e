"""The course: its notebooks run, print what the pages show, draw figures where these have pictures, and are made from them."""

from __future__ import annotations

import json
import re
import shlex
import sys
from math import exp, tanh
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.documents import ROOT, check_sets, parse
from weft.config.sections import recipes

COURSE = ROOT / "docs" / "course"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
CHAPTERS = sorted(file.stem for file in COURSE.glob("[0-9]*.md"))


CLAIMS: dict[str, str] = {
    "01-recurrent-networks": "shares['plain RNN'][1] < 0.8 < shares['LSTM'][1]",
    "02-fixed-context": "curves['fixed context'][5] < 0.5 < curves['with attention'][5]",
    "07-training": "free[19] < 0.5 < forced[19]",
}
"""What must hold where outputs vary, in terms of the names of the notebook."""


@pytest.fixture
def course(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that writes the notebooks, imported as they import: from the folder of the course."""
    monkeypatch.syspath_prepend(str(COURSE))
    for name in ("notebooks", "course_figures", "worked_example"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import notebooks  # type: ignore[import-not-found]

    return notebooks


def alike(shown: str, printed: str) -> bool:
    """Whether two outputs have the same words, and numbers that differ by rounding only."""
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(abs(float(old) - float(new)) <= leeway(old) for old, new in pairs)


def leeway(number: str) -> float:
    """How far a number with decimals may be off: two in its last digit, or 2 %. Whole numbers are counts, which are equal."""
    mantissa, _, exponent = number.partition("e")
    if not exponent and "." not in mantissa:
        return 0.0
    return 2 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])) + 0.02 * abs(float(number))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_notebook_prints_what_its_page_shows(
    course: Any, chapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (COURSE / f"{chapter}.md").read_text("utf-8")
    saved = json.loads((COURSE / f"{chapter}.ipynb").read_text("utf-8"))
    monkeypatch.chdir(tmp_path)
    codes = ["".join(cell["source"]) for cell in saved["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for code, cell in zip(codes, course.cells(page), strict=True):
        printed, value = course.run(code, names)
        assert cell.varies or alike(cell.output, printed), f"the page shows\n{cell.output}\nthe notebook prints\n{printed}"
        assert hasattr(value, "_repr_png_") == bool(cell.figure), code
    assert eval(CLAIMS.get(chapter, "True"), names)


def test_what_chapter_three_computes_on_paper_is_what_a_model_computes(course: Any, tmp_path: Path) -> None:
    """Scores, weights, context and state: by the formula here, as numbers on the page, and inside a translator."""
    from worked_example import translator  # type: ignore[import-not-found]

    scores = [tanh(1.5), tanh(0.5) - tanh(1.0)]
    weights = [exp(score) / sum(map(exp, scores)) for score in scores]
    state = [tanh(weights[0]) / 2 + 0.25, tanh(weights[1]) / 2]
    on_paper = (COURSE / "03-attention-by-hand.md").read_text("utf-8").split("## On paper")[1].split("```python")[0]
    inside = translator(tmp_path).explain("ja", inside=True).inside
    expected = {"cross.scores": scores, "cross.weights": weights, "cross.context": weights, "layers.0.state": state}
    for name, values in expected.items():
        assert inside[name].values[0].tolist() == pytest.approx(values, abs=1e-5), name
        assert all(f"{abs(value):.3f}" in on_paper for value in values), name


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_notebook_is_written_from_its_page(course: Any, chapter: str) -> None:
    page = (COURSE / f"{chapter}.md").read_text("utf-8")
    saved = (COURSE / f"{chapter}.ipynb").read_text("utf-8")
    assert saved == course.written(page), "run python docs/course/notebooks.py"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_has_a_command_a_figure_exercises_with_solutions_and_the_code(chapter: str) -> None:
    page = (COURSE / f"{chapter}.md").read_text("utf-8")
    assert "The number to expect" in page
    assert "```math\n" in page and "```sh\nweft " in page and "](../images/course/" in page
    assert re.search(r"\]\(\.\./\.\./weft\w*/[\w/]+\.py\)", page), "a chapter links to the file of its code"
    exercises, solutions = page.split("## Exercises")[1].split("## Solutions")
    assert [re.findall(r"^(\d)\. ", part, re.MULTILINE) for part in (exercises, solutions)] == [["1", "2", "3"]] * 2


def test_there_are_ten_chapters_and_the_first_page_and_the_map_have_all_of_them() -> None:
    assert len(CHAPTERS) == 10
    for name in ("index.md", "map.md"):
        assert set(re.findall(r"\]\((\d\d-[\w-]+)\.md", (COURSE / name).read_text("utf-8"))) == set(CHAPTERS)


COMMANDS = re.findall(r"`weft ([^`]+)`", (COURSE / "map.md").read_text("utf-8"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_map_parses(command: str) -> None:
    arguments = shlex.split(command)
    assert parse(arguments) == 0
    check_sets(arguments)


def test_a_row_of_the_map_has_a_recipe_that_exists() -> None:
    rows = re.findall(r"^\| \[[^|]*\| `([\w-]+)` \|", (COURSE / "map.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) > 20 and set(rows) <= set(recipes())


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("loss 1.00", "loss 1.01", True),
        ("loss 1.00", "loss 1.10", False),
        ("5 pairs", "6 pairs", False),
        ("a b", "a c", False),
        ("1e-05", "1.01e-05", True),
    ],
)
def test_numbers_may_differ_by_rounding_only(shown: str, printed: str, same: bool) -> None:
    assert alike(shown, printed) == same
