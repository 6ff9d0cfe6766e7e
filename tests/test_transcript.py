"""The transcript in the documents runs: every command in order, in one shell, with less time to train than on the page."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from docs.transcript import PAGE, Step, recorded, run, steps

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
MILESTONES = ("git clone", "pip install", "weft train auto --data", "weft translate", "weft serve", "curl")
EXAMPLE = "```console\n$ a b\none\ntwo\n$ c\n```\n\n<!-- output varies -->\n```console\n$ d\nthree\n```\n"


def hastened(command: str) -> str:
    """The command with little time to train."""
    return re.sub(r"--time \w+", "--time 4s", command)


def test_the_first_ten_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    wanted = [step for step in steps(PAGE.read_text("utf-8")) if not step.sets_up]
    found = run(wanted, tmp_path, hastened)
    same_phrases = f"babel=={version('babel')}" in CONSTRAINTS.read_text("utf-8").split()  # the data are names that Babel knows
    for step, (output, status) in zip(wanted, found, strict=True):
        assert status == 0 and "Traceback" not in output, f"{step.command}\n{output}"
        if not step.varies and same_phrases:
            assert output.rstrip() == step.shown, step.command
        elif step.shown and not step.command.endswith("&"):
            assert output, step.command  # a model of four seconds may translate a line as an empty one
    assert len((tmp_path / "weft" / "output.txt").read_text("utf-8").splitlines()) == 200
    assert "<html" in (tmp_path / "weft" / "page.html").read_text("utf-8")
    answers = [output for step, (output, _) in zip(wanted, found, strict=True) if step.command.startswith("curl")]
    assert answers and all(json.loads(answer)["translatedText"] is not None for answer in answers)


def test_the_page_goes_from_a_clone_to_a_served_model() -> None:
    commands = [step.command for step in steps(PAGE.read_text("utf-8"))]
    order = [next(place for place, command in enumerate(commands) if command.startswith(start)) for start in MILESTONES]
    assert order == sorted(order)


def test_commands_and_outputs_are_found() -> None:
    assert steps(EXAMPLE) == [Step("a b", "one\ntwo", False), Step("c", "", False), Step("d", "three", True)]


def test_outputs_are_written_into_the_page() -> None:
    new = recorded(EXAMPLE, ["1\n2\n", "", "3"])
    assert [step.shown for step in steps(new)] == ["1\n2", "", "3"]
    assert recorded(new, ["one\ntwo", "", "three\n"]) == EXAMPLE


def test_the_page_has_the_real_output_of_its_commands() -> None:
    silent = re.compile(r"weft translate .* -o |kill ")
    missing = [
        step.command
        for step in steps(PAGE.read_text("utf-8"))
        if not (step.sets_up or silent.match(step.command) or step.shown)
    ]
    assert missing == [], "run `python docs/transcript.py`"
