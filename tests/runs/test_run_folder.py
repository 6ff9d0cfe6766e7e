"""Run folders: what may become one, who holds it, and which of the runs adapted from it is the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.errors import ConfigError, DataError, RunError
from weft.file_access import ASIDE
from weft.runs.adapted_runs import complete_adapted, newest_adapted, next_folder
from weft.runs.distillation_and_backtranslation import check_out
from weft.runs.run_folder import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    MODEL,
    RunLock,
    complete,
    create_folder,
    locked_folder,
    records,
    remember_plan,
    remove_stale,
    run_folders,
    unbegun,
    weights_hash,
)
from weft.runs.weight_files import replacing


def test_names_of_runs(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    assert run_folders(f"{tmp_path}/a,b") == [f"{tmp_path}/a,b"]
    assert run_folders("a, b") == ["a", "b"] and run_folders("a") == ["a"]
    for text in ("", "a,", ",b"):
        with pytest.raises(RunError, match="one too few"):
            run_folders(text)


def test_a_run_needs_an_empty_folder_of_its_own(tmp_path: Path) -> None:
    create_folder(tmp_path / "new" / "run")
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="this is a file"):
        create_folder(tmp_path / "file")
    with RunLock(tmp_path / "new" / "run"):
        create_folder(tmp_path / "new" / "run")  # a lock is nothing that could be overwritten
    (tmp_path / "new" / "run" / "other").write_text("x")
    with pytest.raises(RunError, match="not empty"):
        create_folder(tmp_path / "new" / "run")


def test_one_process_holds_a_run_and_is_named(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(RunError, match=r"in use by process \d+ on .*; wait or stop it"):
        RunLock(tmp_path).__enter__()
    with RunLock(tmp_path):
        pass
    with pytest.raises(RunError, match="the run cannot be changed: No such file"):
        RunLock(tmp_path / "none").__enter__()


def fail_in(out: Path, resume: bool, after: str = "") -> None:
    """A run that fails, perhaps after it has written a file."""
    with locked_folder(out, resume, {"data": "a"}):
        assert resume or unbegun(out)
        if after:
            (out / after).parent.mkdir(exist_ok=True)
            (out / after).write_text("{}\n")
        raise ValueError("wrong")


@pytest.mark.parametrize("was_there", [False, True])
def test_a_run_that_fails_before_anything_was_trained_leaves_nothing(tmp_path: Path, was_there: bool) -> None:
    out = tmp_path / "run"
    if was_there:
        out.mkdir()
    with pytest.raises(ValueError, match="wrong"):
        fail_in(out, resume=False)
    assert out.exists() == was_there and not (was_there and list(out.iterdir()))


@pytest.mark.parametrize("kept", [LOG, f"{CHECKPOINTS}/step-1"])
def test_a_run_that_fails_later_stays(tmp_path: Path, kept: str) -> None:
    with pytest.raises(ValueError, match="wrong"):
        fail_in(tmp_path / "run", resume=False, after=kept)
    assert (tmp_path / "run" / kept).exists()
    with pytest.raises(ValueError, match="wrong"):
        fail_in(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / kept).exists()


def test_the_rest_of_a_killed_start_is_removed_by_the_next(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "run", False, {}):
        (tmp_path / "run" / "data").mkdir()
        (tmp_path / "run" / "data" / "half").write_text("x")
        (tmp_path / "run" / "tokenizer.json").write_text("x")
    with locked_folder(tmp_path / "run", False, {}):
        assert not (tmp_path / "run" / "data").exists() and not (tmp_path / "run" / "tokenizer.json").exists()
        (tmp_path / "run" / CONFIG).write_text("a: 1\n")
    with pytest.raises(RunError, match="not empty"), locked_folder(tmp_path / "run", False, {}):
        pass
    (tmp_path / "run" / CHECKPOINTS / f"{ASIDE}step-2").mkdir(parents=True)
    (tmp_path / "run" / f"{ASIDE}model").write_text("x")
    remove_stale(tmp_path / "run")
    assert not list((tmp_path / "run").rglob(f"{ASIDE}*")) and (tmp_path / "run" / CONFIG).exists()


def test_a_run_is_complete_once_its_log_says_so(tmp_path: Path) -> None:
    assert records(tmp_path) == [] and not complete(tmp_path)
    (tmp_path / LOG).write_text('{"event": "step"}\n{"event": "summary"}\n{"event": "st')
    assert [each["event"] for each in records(tmp_path)] == ["step", "summary"] and complete(tmp_path)
    (tmp_path / LOG).write_text('{"event": "summary"}\n{"event": "step"}\n')
    assert not complete(tmp_path)
    with pytest.raises(RunError, match="so nothing can start from this run yet"):
        weights_hash(tmp_path)


def test_a_folder_of_runs_keeps_its_plan(tmp_path: Path) -> None:
    remember_plan(tmp_path / "new", {"data": "a", "folds": 2}, "folds")
    remember_plan(tmp_path / "new", {"data": "a", "folds": 2}, "folds")
    with pytest.raises(ConfigError, match="its folds were begun with folds 2, not 3"):
        remember_plan(tmp_path / "new", {"data": "a", "folds": 3}, "folds")


def test_the_newest_complete_adapted_run_counts(tmp_path: Path) -> None:
    assert newest_adapted(tmp_path) is None
    folders = []
    for number in (1, 2, 3):
        folders.append(next_folder(tmp_path))
        folders[-1].mkdir(parents=True)
        assert folders[-1].name == f"{number:04}"
    for folder in (folders[1], folders[0]):
        complete_adapted(folder, {"score": 1})
    assert newest_adapted(tmp_path) == folders[1] and next_folder(tmp_path).name == "0004"


def test_translations_never_overwrite_what_is_translated(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    text = tmp_path / "a.txt"
    for spec in (str(text), f"{text},b.txt", f"b.txt,{text}", f"{text}#1,2"):
        with pytest.raises(DataError, match="would overwrite"):
            check_out(text, ["other.txt", spec])
    check_out(tmp_path / "b.txt", [str(text)])
    for name, says in (
        ("b.gz", "only in a plain file"),
        ("b.tsv", "ends in .jsonl"),
        ("b.JSONL", "ends in .jsonl"),
        ("", "a folder"),
    ):
        with pytest.raises(DataError, match=says):
            check_out(tmp_path / name, [str(text)])


def fail_to_save(file: Path, error: OSError) -> None:
    with replacing(file) as aside:
        aside.write_text("new")
        raise error


@pytest.mark.parametrize(
    ("error", "says"),
    [(PermissionError(13, "no"), "permission|write there"), (OSError(28, "No space left"), r"No space left.*MiB are free")],
)
def test_what_cannot_be_saved_leaves_the_file_of_before(tmp_path: Path, error: OSError, says: str) -> None:
    (tmp_path / MODEL).write_text("old")
    with pytest.raises(RunError, match=says):
        fail_to_save(tmp_path / MODEL, error)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(MODEL, "old")]
    with replacing(tmp_path / MODEL) as aside:
        aside.write_text("new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(MODEL, "new")]


def test_a_folder_takes_the_place_of_one_with_files(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "old").write_text("x")
    with replacing(tmp_path / "step-1") as aside:
        aside.mkdir()
        (aside / "new").write_text("y")
    assert [file.relative_to(tmp_path).as_posix() for file in sorted(tmp_path.rglob("*"))] == ["step-1", "step-1/new"]
