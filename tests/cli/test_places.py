"""Strange places: names, folders, homes and clocks. `benchmarks/campaigns/places.py` has more of them."""

from __future__ import annotations

import importlib
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.helpers import small_task, tiny
from weft.data.corpus import cache_folder
from weft.errors import DataError, RunError
from weft.file_access import denied, own_cache, replace_file
from weft.layers.kernels.cpp.compiled_library import _folder
from weft.runs.weight_files import read_tensors

CAMPAIGNS = Path(__file__).parents[2] / "benchmarks" / "campaigns"


def test_outputs_have_names_of_255_bytes(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    text, page, folder = "n" * 251 + ".txt", "é" * 125 + ".html", "東" * 85
    weft("translate", reverse_run, "-o", tmp_path / text, stdin="a b c\n")
    weft("explain", reverse_run, "a b", "-o", tmp_path / page)
    weft("average", reverse_run, "--out", tmp_path / folder)
    assert sorted(os.listdir(tmp_path)) == sorted([text, page, folder])
    assert (tmp_path / text).read_text() == "c b a\n"
    for name in ("a" * 255, "b" * 255):
        replace_file(tmp_path / name, name)
    assert (tmp_path / ("a" * 255)).read_text() == "a" * 255


def test_a_folder_that_is_gone_and_a_name_that_is_no_text_are_said(
    weft: tiny.Shell, reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (b"\xff\xfe", "Größe".encode("latin-1")):
        weft.fails("translate", os.fsdecode(name), says=["not valid UTF-8", "PYTHONUTF8=1"])
    latin = tmp_path / os.fsdecode("Größe".encode("latin-1"))
    latin.mkdir()
    shutil.copyfile(reverse_run / "model.safetensors", latin / "model.safetensors")
    with pytest.raises(RunError, match="safetensors needs a path in UTF-8"):
        read_tensors(latin / "model.safetensors")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    data = tiny.generated("reverse", 30)
    weft.fails("train", "transformer-tiny", "--data", data, "--out", tmp_path / "run", says=["current folder has been deleted"])


def test_a_umask_that_closes_new_files_is_named(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        assert denied(tmp_path / "out.txt", "write there").endswith(
            "your umask (777) takes your own permissions from new files; set umask 022"
        )
    finally:
        os.umask(before)
    assert "your umask" not in denied(tmp_path, "write there")


def test_a_user_without_a_home_is_told_where_a_cache_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", classmethod(nobody))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert own_cache() is None
    with pytest.raises(DataError, match=r"no home.*set data\.cache or the environment variable XDG_CACHE_HOME"):
        cache_folder()
    assert cache_folder(str(tmp_path)) == tmp_path
    assert _folder().parent == tmp_path, "kernels are compiled for this process alone"


def test_budgets_and_steps_do_not_look_at_the_time_of_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def jumps() -> float:
        raise AssertionError("the time of day jumps")

    monkeypatch.setattr(time, "time", jumps)
    monkeypatch.setattr(time, "time_ns", jumps)
    result, _ = small_task.train(tmp_path, steps=3, seconds=1e6)
    assert (result.update, result.stopped) == (3, "steps")
    again, _ = small_task.train(tmp_path, steps=9, seconds=1e-9, resume=True)
    assert again.stopped == "time"


@pytest.mark.parametrize("name", ["name: quotes", "zone: Pacific/Kiritimati"])
def test_the_campaign_finds_the_same_in_a_strange_place(
    name: str, reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(CAMPAIGNS))
    places = importlib.import_module("places")
    monkeypatch.setattr(places, "COMMANDS", ("translate", "evaluate"))
    shutil.copytree(reverse_run, tmp_path / "base")
    zygote = places.Zygote(tmp_path)
    for each in ("plain", name):
        zygote.visit(each, places.places()[each])
    assert [line["verdict"] for line in zygote.done.values()] == ["same"] * 4
