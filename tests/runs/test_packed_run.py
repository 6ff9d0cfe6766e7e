"""Packed runs: one file with the same answers and reproducible bytes, which nobody can use to write elsewhere."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import weft
from tests.helpers.foreign_models import ROTARY, TEXTS, random_run
from weft.errors import RunError
from weft.runs.packed_run import pack_run, unpack_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return random_run(tmp_path / "run", **ROTARY)


def test_a_packed_run_answers_and_unpacks(run: Path, tmp_path: Path) -> None:
    pack_run(run, tmp_path / "a.weft")
    texts = [each.text for each in weft.load(run).translate(TEXTS[:4], max_length=12)]
    assert [each.text for each in weft.load(tmp_path / "a.weft").translate(TEXTS[:4], max_length=12)] == texts
    unpack_run(tmp_path / "a.weft", tmp_path / "again")
    assert [each.text for each in weft.load(tmp_path / "again").translate(TEXTS[:4], max_length=12)] == texts
    pack_run(tmp_path / "again", tmp_path / "b.weft")
    assert (tmp_path / "a.weft").read_bytes() == (tmp_path / "b.weft").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.weft") as archive:
        assert {"config.yaml", "model.safetensors", "README.md", "run.json", "tokenizer.json"} == set(archive.namelist())
        assert str(tmp_path) not in archive.read("config.yaml").decode()
    with pytest.raises(RunError, match="exists already"):
        pack_run(run, tmp_path / "a.weft")


@pytest.mark.parametrize("name", ["../evil.json", "/tmp/evil.json", "a/b.json", "model.pkl", "..\\evil.json", "config.yaml"])
def test_strange_names_are_refused(name: str, run: Path, tmp_path: Path) -> None:
    pack_run(run, tmp_path / "a.weft")
    with (
        pytest.warns(UserWarning, match="Duplicate") if name == "config.yaml" else _nothing(),
        zipfile.ZipFile(tmp_path / "a.weft", "a") as archive,
    ):
        archive.writestr(name, "{}")
    with pytest.raises(RunError, match=r"never has|twice"):
        unpack_run(tmp_path / "a.weft", tmp_path / "out")
    with pytest.raises(RunError, match=r"never has|twice"):
        weft.load(tmp_path / "a.weft")
    assert not (tmp_path / "evil.json").exists() and not any((tmp_path / "out").glob("*"))


def _nothing() -> object:
    from contextlib import nullcontext

    return nullcontext()


def test_damaged_files_are_refused(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.weft"
    pack_run(run, file)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match="not a packed run, or cut short"):
        weft.load(file)
    middle = len(content) // 2
    file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    with pytest.raises(RunError, match="damaged"):
        unpack_run(file, tmp_path / "out")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.yaml", "a" * 10_000_000)
    with pytest.raises(RunError, match="neither compressed"):
        unpack_run(file, tmp_path / "out")
