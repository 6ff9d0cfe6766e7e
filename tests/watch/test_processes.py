"""What the page says of the processes it has started: trainings that begin, those that failed, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from tests.helpers.watching import write_run
from weft.errors import RunError
from weft.watch import processes as module
from weft.watch.processes import RECENT, Processes


class Running(Popen):  # type: ignore[type-arg]
    """A process that has been started and ends when it is told to, without one."""

    def __init__(self, words: list[str], **options: Any) -> None:
        self.words, self.code = words, None

    def __del__(self, *ignored: Any) -> None:
        """Popen would look for the process."""

    def poll(self) -> int | None:
        return self.code


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(module.subprocess, "Popen", Running)
    return Processes(tmp_path)


def names(page: Processes) -> list[str]:
    return [each["name"] for each in page.started()]


def test_a_training_is_listed_until_it_has_a_folder_and_never_after_that(page: Processes, tmp_path: Path) -> None:
    page._start("mine", ["train"])
    assert page.started() == [{"name": "mine", "problem": ""}]
    write_run(tmp_path / "mine")
    assert names(page) == []
    page.running["mine"].code = 0  # type: ignore[attr-defined]
    page._start("search/runs/b", ["train"])
    page.running["search/runs/b"].code = 0  # type: ignore[attr-defined]
    (tmp_path / "mine").rename(tmp_path / "away")
    assert names(page) == [], "a training that has ended well does not start again because its folder was moved"


def test_a_training_that_failed_is_listed_with_its_error_for_some_time(page: Processes, tmp_path: Path) -> None:
    page._start("mine", ["train"])
    page.running["mine"].code = 1  # type: ignore[attr-defined]
    log = tmp_path / ".watch" / "logs" / "mine.log"
    log.write_text("reading\nweft: error: there is no such file\n")
    assert page.started() == [{"name": "mine", "problem": "there is no such file"}]
    assert Processes(tmp_path).started() == page.started(), "also by a page that is started again"
    old = time.time() - RECENT - 1
    os.utime(log, (old, old))
    assert names(page) == []


def test_a_comparison_is_no_training(page: Processes, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name)
        (tmp_path / name / "model.safetensors").touch()
    assert page.compare(tmp_path / "a", tmp_path / "b") == {"state": "running"} and names(page) == []
    page.comparing["a-and-b"].code = 1  # type: ignore[attr-defined]
    (tmp_path / ".watch" / "comparisons" / "a-and-b.log").write_text("weft: error: no validation data\n")
    assert names(page) == []
    with pytest.raises(RunError, match="no validation data"):
        page.compare(tmp_path / "a", tmp_path / "b")
    assert page.compare(tmp_path / "a", tmp_path / "b") == {"state": "running"}, "it can be tried again"
