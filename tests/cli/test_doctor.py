"""`weft doctor`, and what the shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import tiny
from weft.bench import doctor as diagnosis
from weft.bench.doctor import Finding, diagnose
from weft.cli import options as completion
from weft.layers.kernels.cpp import compiled_library as build


def test_the_doctor_reports_everything(weft: tiny.Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "library", lambda: None)  # compiling takes seconds
    found = json.loads(weft("doctor", "--json"))
    assert found["ok"] is True
    groups = {each["group"] for each in found["findings"]}
    assert groups == {"versions", "CPU", "GPU", "kernels", "pictures", "extras", "cache"}
    names = {(each["group"], each["name"]): each for each in found["findings"]}
    for place in (
        ("versions", "torch"),
        ("CPU", "threads"),
        ("kernels", "C++ compiler"),
        ("extras", "serve"),
        ("cache", "folder"),
    ):
        assert names[place]["text"], place
    assert all(each["advice"] for each in found["findings"] if each["state"] != "ok")


def test_problems_are_marked_with_what_to_do_and_change_the_status(weft: tiny.Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Finding]:
        raise ImportError("no module [torch]")

    monkeypatch.setattr(diagnosis, "_gpus", broken)
    monkeypatch.setattr(
        diagnosis, "_kernels", lambda: [Finding("kernels", "C++ compiler", "c++ not found", "missing", "install g++")]
    )
    weft.fails("doctor", says=["1 problem: broken check"])
    assert "✗ check: failed: ImportError: no module [torch]" in weft.out
    assert "– C++ compiler: c++ not found" in weft.out and "→ install g++" in weft.out


def test_a_cache_that_cannot_be_written_and_missing_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "why_unwritable", lambda folder: "it is on a read-only file system")
    monkeypatch.setattr(diagnosis, "CORE", ("torch", "no-such-package"))
    monkeypatch.setattr(diagnosis, "EXTRAS", {"ja": (("no_such_module",), "BLEU of Japanese")})
    monkeypatch.setattr(diagnosis, "_kernels", list)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "there"))
    states = {(each.group, each.name): each for each in diagnose()}
    assert states["cache", "folder"].state == "problem" and "XDG_CACHE_HOME" in states["cache", "folder"].advice
    assert states["versions", "no-such-package"].state == "problem"
    assert states["extras", "ja"].state == "missing" and "[ja]'" in states["extras", "ja"].advice


def test_recipes_runs_and_settings_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/ende", "runs/enfr", "rest"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "runs/ende/config.yaml").write_text("")
    (tmp_path / "mine.yaml").write_text("")
    assert completion.recipes("transformer-t") == ["transformer-tiny"]
    assert completion.recipes("mi") == ["mixed-cnn", "mixed-rnn", "mine.yaml"]
    assert completion.complete_runs("r") == ["rest/", "runs/"]
    assert completion.complete_runs("runs/e") == ["runs/ende", "runs/enfr/"]
    assert completion.complete_runs("runs/ende,runs/en") == ["runs/ende,runs/ende", "runs/ende,runs/enfr/"]
    assert completion.complete_runs("nowhere/x") == []
    assert completion.settings("tr") == ["train."]
    assert completion.settings("train.keep") == ["train.keep_last=", "train.keep_best="]
    assert "model.encoder_self=local" in completion.settings("model.encoder_self=lo")
    assert completion.settings("decode.search=be") == ["decode.search=beam"]


def test_a_shell_gets_completions_from_weft() -> None:
    environment = {**os.environ, "_WEFT_COMPLETE": "complete_bash", "COMP_WORDS": "weft train transformer-t", "COMP_CWORD": "2"}
    program = "import sys; sys.argv[:] = ['weft']; from weft.cli import make_app; make_app()(prog_name='weft')"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert "transformer-tiny" in done.stdout.split(), done.stderr
