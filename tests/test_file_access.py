"""Files that are replaced atomically."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weft.file_access import default_mode, replace_file


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """With one temporary name for all, a writer renames the half-written file of another, or finds none to rename."""
    file = tmp_path / "state.json"
    texts = [str(number) * 200_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            list(pool.map(lambda text: replace_file(file, text), texts))
            assert file.read_text() in texts
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
    assert file.stat().st_mode & 0o777 == default_mode()


def test_file_and_folder_are_synced_before_and_after_the_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    def replaced(old: str, new: Path) -> None:
        events.append("replace")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    replace_file(tmp_path / "file", b"new")
    assert events == ["file", "replace", "folder"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError("no space left on device")))
    with pytest.raises(OSError, match="no space left"):
        replace_file(tmp_path / "file", "new")
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old"]
