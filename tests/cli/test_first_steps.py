"""Mistakes and habits of new users: data without --data, pipes that close, Ctrl-C at the start, narrow terminals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.tiny import Shell

WEFT = [sys.executable, "-m", "weft"]


def test_data_without_its_option_is_explained(weft: Shell, tmp_path: Path) -> None:
    data = tmp_path / "pairs.tsv"
    data.write_text("a b\tb a\n", encoding="utf-8")
    weft.fails("train", data, says=["neither a recipe nor a YAML file", f"weft train auto --data {data}"])
    ended = subprocess.run([*WEFT, "train", "auto", str(data)], capture_output=True, text=True)
    assert ended.returncode == 2 and "--data" in ended.stderr


def test_a_text_is_translated_without_a_hint(weft: Shell, reverse_run: Path) -> None:
    weft("translate", reverse_run, "a b c")
    assert "no file of this name" not in weft.err


def test_options_are_blamed_by_their_own_names(weft: Shell, reverse_run: Path) -> None:
    weft.fails("translate", reverse_run, "a b", "--beam", "9999999", says=["a beam of 9,999,999 hypotheses"])
    weft.fails("translate", reverse_run, "a b", "--set", "decode.beam=9999999", says=["a beam of 9,999,999 hypotheses"])
    weft.fails("translate", reverse_run, "a b", "--device", "cuda:99", says=["--device: there is no device 'cuda:99'"])


def test_a_reader_that_ends_early_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        ended = subprocess.run([*WEFT, "list", "recipes"], stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_interruption_at_the_start_shows_no_traceback() -> None:
    code = (
        "import importlib.abc, os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which is off in jobs in the background
        "class Interrupt(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "import weft.cli"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGINT and ended.stderr == ""


def test_the_list_fits_a_narrow_terminal_and_json_has_everything(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = weft("list", "attentions")
    assert "encoder causal cross" in shown and "sparse_transformer.py" in shown and "Vaswani" not in shown
    (first, *_), recipes = (json.loads(weft("list", name, "--json"))[name] for name in ("attentions", "recipes"))
    assert first["kind"] == "full" and first["shows weights"] == "yes" and first["file"] == "full.py"
    assert {"transformer-small", "auto"} <= {each["name"] for each in recipes}


def test_a_run_is_compared_with_the_outputs_of_another_system(weft: Shell, reverse_run: Path, tmp_path: Path) -> None:
    test, other = tmp_path / "test.tsv", tmp_path / "other.txt"
    test.write_text("a b c\tc b a\nd e f\tf e d\n", encoding="utf-8")
    other.write_text("c b x\nf e y\n", encoding="utf-8")
    found = json.loads(weft("evaluate", reverse_run, "--data", test, "--against", other, "--json", "--samples", "20"))
    assert str(other) in json.dumps(found)
    other.write_text("c b x\n", encoding="utf-8")
    weft.fails("evaluate", reverse_run, "--data", test, "--against", other, says=["1 lines, and the test data 2"])
