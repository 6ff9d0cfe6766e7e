"""What commands show: help without types of Python, lines that fit the terminal, signatures that can be copied."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.helpers import tiny
from tests.helpers.documents import parse
from weft import cli
from weft.cli import COMMANDS, GROUPS
from weft.cli.input_and_output import Counter, StatusLine
from weft.cli.options import EXAMPLES

PLAIN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """Standard error, as a terminal with 60 columns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        monkeypatch.setattr(sys, "stderr", self)
        monkeypatch.setenv("COLUMNS", "60")

    def isatty(self) -> bool:
        return True


PAIRS_OF_WORDS = [f"{first} {second}" for first, group in GROUPS.items() for second in group]


@pytest.mark.parametrize("command", ["", *COMMANDS, *PAIRS_OF_WORDS])
def test_help_names_values_and_gives_examples(weft: tiny.Shell, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = weft(*command.split(), "--help")
    assert not re.search(r"<(bool|str|path|int|float)( range)?>|list\[|BOOLEAN", shown), "a type of Python"
    assert re.search(r"--help +-h +Show this message", shown), "a flag has no value"
    assert max(map(len, shown.splitlines())) <= 80
    if command:
        assert "Examples:" in shown and f"weft {command} " in f"{shown} "


@pytest.mark.parametrize("example", [each for examples in EXAMPLES.values() for each in examples])
def test_examples_of_the_help_parse(example: str) -> None:
    assert parse(shlex.split(example.rpartition("| ")[2])[1:]) == 0


@pytest.mark.parametrize("name", ["train", "evaluate", "align"])
def test_help_shows_how_columns_are_chosen(weft: tiny.Shell, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert all(form in weft(name, "--help") for form in ("x.tsv#2,3", "x.jsonl#en,de", "x.csv#en,de"))


def test_signatures_are_on_one_line_in_a_narrow_terminal(
    weft: tiny.Shell, reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tsv").write_text("a b\tb a\nc d\td c\n")
    monkeypatch.setenv("COLUMNS", "40")
    shown = weft("evaluate", reverse_run, "--data", tmp_path / "a.tsv", "--samples", "10").splitlines()
    [signature] = [line for line in shown if line.startswith("BLEU: ")]
    assert re.fullmatch(r"BLEU: nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:[\w.]+", signature)


def test_a_status_line_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    with StatusLine() as line:
        for text in ("x" * 200, "文" * 200, "short"):
            line.show(text)
    drawn = [PLAIN.sub("", each) for each in terminal.getvalue().split("\r")]
    assert "x" * 59 in drawn and "文" * 29 in drawn and "short" in drawn


def test_a_counter_knows_the_total_and_has_units(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    with Counter("done", "lines", total=3) as counter:
        for _ in range(3):
            counter.written = 0.0  # shown as if time had passed
            counter.advance()
    first, *_, last = [PLAIN.sub("", each).strip() for each in terminal.getvalue().split("\r") if "done" in each]
    assert re.fullmatch(r"done 1 of 3 lines · [\d,.]+ lines/s · \d+:\d\d left", first)
    assert re.fullmatch(r"done 3 of 3 lines · [\d,.]+ lines/s · \d+:\d\d", last)


def test_translating_a_file_into_a_file_knows_the_total(
    reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_text("a b\nc d\ne\n")
    terminal = Terminal(monkeypatch)
    assert cli.run(["translate", str(reverse_run), str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--device", "cpu"]) == 0
    assert "of 3 lines" in terminal.getvalue()


def test_nothing_moves_without_a_terminal(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a b\n")
    weft("translate", reverse_run, tmp_path / "in", "-o", tmp_path / "out")
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", weft.err)
