"""The campaign of mutants tells a planted mistake from a change that makes no difference, and goes on where it stopped."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "campaigns"
CODE = '''"""Sums."""

LIMIT = 10


def total(values, *, most=LIMIT):
    """Adds the positive ones."""
    found = 0
    for value in values:
        if value > 0:
            found += value
    if len(values) > 1000:
        found -= 1
    return found if found < most else most


def never(x):
    while x > 3:
        x -= 2
    return x
'''
TESTS = """import subprocess
import sys

import pytest

from sums.adding import never, total


@pytest.fixture(scope="module")
def values():
    return [1, 0, -1, 2]


def test_total(values):
    assert total(values) == 3
    assert total([9, 9]) == 10


def test_never():
    assert never(7) == 3


def test_in_a_process():
    code = "from sums.adding import total; print(total([4, 1]))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "5\\n"
"""
SETTINGS = "[pytest]\npythonpath = .\naddopts = --import-mode=importlib\n"
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, ".")
import mutants, mutant_tests
mutant_tests.ROOMS.clear()
mutant_tests.ROOMS["sums"] = ("sums", ("tests",))
mutants.UNCHANGED_EVERY = 8
mutants.mutant_runs.LEAST = 0.5
place = mutants.Workplace(Path.cwd(), Path("kept").resolve(), ["tests"])
Path("kept").mkdir(exist_ok=True)
sources = mutant_tests.Sources.read(Path.cwd())
options = mutants.parser().parse_args(["--out", "rows.jsonl", "--count", sys.argv[2]])
mutants.prepare(place, sources)
mutants.campaign(place, sources, options)
"""


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    for name, text in (
        ("sums/__init__.py", ""),
        ("sums/adding.py", CODE),
        ("tests/test_adding.py", TESTS),
        ("pytest.ini", SETTINGS),
    ):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_planted_mistakes_are_caught_and_a_second_call_goes_on(sums: Path) -> None:
    def run(count: int) -> list[dict[str, object]]:
        environment = {**os.environ, "PYTHONPATH": str(sums)}
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(FOLDER), str(count)], cwd=sums, env=environment, check=True, timeout=300
        )
        return [json.loads(line) for line in (sums / "rows.jsonl").read_text().splitlines()]

    first = run(3)
    rows = run(99)
    assert rows[: len(first)] == first and len(rows) > len(first)
    verdicts = {
        CODE.splitlines()[int(str(row["statement"])) - 1].strip(): row["verdict"] for row in rows if row["operator"] != "none"
    }
    assert verdicts["found += value"] == verdicts["return x"] == verdicts["LIMIT = 10"] == "caught"
    assert verdicts["x -= 2"] == "too long"
    assert verdicts["if len(values) > 1000:"] == "survived" and verdicts["found -= 1"] == "not run"
    assert [row["verdict"] for row in rows if row["operator"] == "none"] == ["survived"]
    text = mutants_report(sums / "rows.jsonl")
    assert "not run sums/adding.py:13 " in text and "unchanged code noticed 0 of 1 times" in text


def mutants_report(rows: Path) -> str:
    command = [sys.executable, str(FOLDER / "mutants.py"), "--report", "--out", str(rows)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_each_kind_of_change_is_made_and_texts_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    operators = importlib.import_module("mutation_operators")
    source = (
        "async def f(a, b=2):\n    'Says 3.'\n    with a:\n        await g(a, b)\n    if not a < b and b:\n"
        "        raise ValueError(f'{a + 1}')\n    for c in a:\n        break\n    return max(a, -c)\n"
    )
    found = operators.mutants_of(source, "f.py")
    assert [(each.line, each.operator) for each in found] == [
        (1, "constant"),
        (1, "constant"),
        (3, "with removed"),
        (4, "statement removed"),
        (4, "await removed"),
        (4, "arguments swapped"),
        (5, "condition negated"),
        (5, "and/or"),
        (5, "not removed"),
        (5, "comparison"),
        (6, "statement removed"),
        (8, "break/continue"),
        (9, "return None"),
        (9, "sign removed"),
    ]
    texts = {ast.unparse(operators.mutated(source, each.candidate)) for each in found}
    assert len(texts) == len(found) and ast.unparse(ast.parse(source)) not in texts
    assert ast.unparse(operators.mutated(source, -1)) == ast.unparse(ast.parse(source))
    assert found[0].function == "" and {each.function for each in found[2:]} == {"1:f"}
