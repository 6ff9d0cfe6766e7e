"""Files that are replaced atomically."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weft.file_access import appending, default_mode, replace_file, sole_writer, sync, sync_all, unfinished


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


def test_what_a_killed_writer_has_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = [
        tmp_path / name for name in (".tmp-file.0a1b2c3d", ".tmp-old-file.0a1b2c3d", ".tmp-file.0a1b2c3d.files", ".tmp-file")
    ]
    others = [tmp_path / name for name in (".tmp-other.0a1b2c3d", ".tmp-file.json.0a1b2c3d", ".tmp-files", "file.0a1b2c3d")]
    for path in (*left, *others):
        path.write_text("half")
    replace_file(tmp_path / "file", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["file", *(path.name for path in others)])


def test_what_a_living_writer_is_at_stays(tmp_path: Path) -> None:
    with unfinished(tmp_path / "file") as aside:
        aside.write_text("half")
        replace_file(tmp_path / "file", "another's")
        with unfinished(tmp_path / "more", sweep=True):
            assert aside.read_text() == "half"
        os.replace(aside, tmp_path / "file")
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["half"]


def test_a_folder_is_synced_with_everything_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("")
    (tmp_path / "a" / "link").symlink_to("nowhere")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    sync_all(tmp_path / "a")
    sync_all(tmp_path / "a" / "b" / "file")
    file = str(tmp_path / "a" / "b" / "file")
    assert sorted(synced) == sorted([str(tmp_path / "a"), str(tmp_path / "a" / "b"), file, file])


def test_one_process_at_a_time_writes_a_file(tmp_path: Path) -> None:
    part, out = tmp_path / "out.part", tmp_path / "out"
    with sole_writer(part, out):
        with pytest.raises(OSError, match="another process is writing it"), sole_writer(part, out):
            pass
        os.replace(part, out)
        with sole_writer(part, out):  # the name is free again
            assert part.exists() and out.exists()
    with sole_writer(part, out):
        pass


@pytest.mark.parametrize("write", [lambda file: replace_file(file, "new"), lambda file: _append(file), sync])
def test_an_error_in_writing_names_the_file(
    write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a full disk names nothing, that of a read-only one the temporary file."""
    (tmp_path / "file").write_text("old")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match=r"No space left on device: '.*/file'$"):
        write(tmp_path / "file")


def _append(file: Path) -> None:
    with appending(file) as out:
        os.fsync(out.fileno())
