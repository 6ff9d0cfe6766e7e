"""`make check` runs the tests of what has changed."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.changed_tests import mechanisms_of, select_tests

TESTS = {
    Path("tests/attention/test_luong.py"): "",
    Path("tests/models/test_rnn.py"): "from weft.attention.luong import DotAttention\n",
    Path("tests/runs/test_hub.py"): "from weft.attention import luong\n",
    Path("tests/training/test_ema.py"): "from weft.attention.luongs import Other\n",
}


def test_a_module_selects_its_tests_and_those_that_import_it() -> None:
    chosen = select_tests(Path("weft/attention/luong.py"), TESTS)
    assert chosen == [Path(f"tests/{name}.py") for name in ("attention/test_luong", "models/test_rnn", "runs/test_hub")]


def test_other_files_select_what_reads_them() -> None:
    assert select_tests(Path("tests/models/test_rnn.py"), TESTS) == [Path("tests/models/test_rnn.py")]
    assert select_tests(Path("docs/start.md"), TESTS) == [Path("tests/test_readme.py")]
    chapter = [Path("tests/test_readme.py"), Path("tests/test_course.py")]
    assert select_tests(Path("docs/course/08-decoding.md"), TESTS) == chapter
    assert select_tests(Path("weft/config/recipes/han.yaml"), TESTS) == [Path("tests/test_recipes.py")]
    assert select_tests(Path("weft/py.typed"), TESTS) == []


def test_a_mechanism_selects_its_part_of_the_contract() -> None:
    assert mechanisms_of([Path("weft/attention/performer.py"), Path("weft/models/rnn.py")]) == ["performer"]
    assert "fnet" in mechanisms_of([Path("weft/attention/mixers/fnet.py")])
