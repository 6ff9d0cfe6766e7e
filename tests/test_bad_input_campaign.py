"""A short form of the campaign of bad input, `benchmarks/campaigns/bad_input.py`, and that it finds what it looks for."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.errors import DataError

FOLDER = Path(__file__).parent.parent / "benchmarks" / "campaigns"

for package in ("polib", "openpyxl", "docx", "pyarrow", "translate", "PIL", "zstandard", "sentencepiece"):
    pytest.importorskip(package)


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script; cases that take too long are noticed."""
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("bad_input")
    before = signal.signal(signal.SIGPROF, module._too_slow)
    yield module
    signal.signal(signal.SIGPROF, before)


def test_the_script_prints_its_usage(
    campaign: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bad_input", "--help"])
    with pytest.raises(SystemExit):
        campaign.main()
    assert "--case" in capsys.readouterr().out


def test_fuzzed_files_are_read_or_refused(campaign: Any) -> None:
    readers = importlib.import_module("bad_input_readers")
    cases = campaign.Files(7, [*readers.table_files(), *readers.exchange_files(), *readers.media_files()])
    counts = campaign.Counts()
    for number in range(3 * len(cases.readers)):
        cases.run(number, counts)
    assert not counts.findings
    assert counts.read.total() > 30 and counts.refused.total() > 60


def test_fuzzed_lines_are_read_or_refused(campaign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "COSTLY", {})
    cases, counts = campaign.Lines(7), campaign.Counts()
    for number in range(240):
        cases.run(number, counts)
    assert not counts.findings
    assert counts.read.keys() | counts.refused.keys() == {*cases.readers, "bytes"}


def test_what_is_wrong_is_found(campaign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise DataError("no")

    def spin() -> None:
        while True:
            pass

    def grow() -> None:
        raise MemoryError

    monkeypatch.setattr(campaign, "SECONDS", 0.02)
    counts = campaign.Counts()
    for name, read in (("good", lambda: 1), ("refused", refuse), ("bug", lambda: [][0]), ("endless", spin), ("large", grow)):
        campaign.attempt(counts, name, 1, read, "lines:1")
    assert counts.read == {"good": 1} and counts.refused == {"refused": 1}
    kinds = {each["reader"]: each["kind"] for each in counts.findings}
    assert kinds == {"bug": "IndexError", "endless": "too slow", "large": "memory"}


def test_time_that_grows_faster_than_the_text_is_found(campaign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "SLOW", 0.004)
    cases = campaign.Lines.__new__(campaign.Lines)
    cases.readers = {
        "quadratic": lambda text: [hash(text[at:]) for at in range(len(text))],
        "linear": lambda text: [hash(text[:-1]) for _ in range(200)],
    }
    counts = campaign.Counts()
    for name in cases.readers:
        cases._check_growth("a" * 12_000, name, counts, 1)
    assert [each["reader"] for each in counts.findings] == ["quadratic"]


def test_a_process_that_dies_or_hangs_is_a_finding_and_the_others_are_counted(
    campaign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cases:
        def run(self, number: int, counts: Any) -> None:
            if number == 3:
                signal.raise_signal(signal.SIGKILL)
            if number == 5:
                signal.pause()
            counts.read["x"] += 1

    monkeypatch.setattr(campaign, "STUCK", 0.5)
    counts = campaign.in_fork(Cases(), "files", 0, 8, tmp_path)
    assert counts.read == {"x": 6}
    assert [(each["case"], each["kind"]) for each in counts.findings] == [("files:3", "ended by signal 9"), ("files:5", "hang")]


def test_a_campaign_continues_where_it_stopped(campaign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cases:
        def __init__(self, seed: int) -> None:
            pass

        def run(self, number: int, counts: Any) -> None:
            counts.read[str(number)] += 1

    monkeypatch.setattr(campaign, "Lines", Cases)
    monkeypatch.setattr(campaign, "BLOCK", {"lines": 2, "files": 2})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = argparse.Namespace(out=tmp_path, lines=4, files=0, seed=1, minutes=1.0, random_bytes=False)
    campaign.campaign(options)
    options.lines = 7
    total = campaign.campaign(options)
    assert total.read == {str(number): 1 for number in range(7)}
    journal = [json.loads(line)["first"] for line in (tmp_path / "cases.jsonl").read_text().splitlines()]
    assert journal == [0, 2, 4, 6] and "7 lines, 0 files" in campaign.report(total, tmp_path / "cases.jsonl")
