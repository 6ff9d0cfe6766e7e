"""Run folders, which are never overwritten silently and are used by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from weft.data.json_text import read_json
from weft.errors import ConfigError, RunError
from weft.file_access import ASIDE, denied, make_folder, remove_unfinished, replace_file
from weft.runs.migrations import FORMAT_FILE, read_request, write_format

CONFIG = "config.yaml"
MODEL = "model.safetensors"
CHECKPOINTS = "checkpoints"
LOG = "log.jsonl"
LOCK = "run.lock"

MEASURED = ("train", "validation")
"""Events of a log whose other values are numbers, or nothing where there is none."""

PLAN = "plan.json"
"""The training settings of the runs in a folder of several."""


def run_folders(text: str) -> list[str]:
    """The run folders that `a,b` names. A folder whose name contains a comma is one run."""
    folders = [text] if text and os.path.isdir(text) else [part.strip() for part in text.split(",")]
    if not all(folders):
        raise RunError(f"{text!r} names no run folder, or one too few; write RUN, or RUN,RUN for an ensemble")
    return folders


def create_folder(out: Path) -> None:
    """Creates the folder of a new run. Raises RunError if it would overwrite something."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out}: this is a file; a run needs its own folder")
    kept = [entry for entry in out.iterdir() if entry.name != LOCK and not entry.name.startswith(ASIDE)] if out.is_dir() else []
    if kept and not unbegun(out):
        hint = f"continue the run with `weft train --resume {out}`, or choose another folder"
        raise RunError(f"{out}: the folder is not empty, and weft does not overwrite files; {hint}")
    make_folder(out)


def unbegun(out: Path) -> bool:
    """Whether a process was killed here before the first step of a new run, when it writes the settings."""
    return (out / FORMAT_FILE).is_file() and not any((out / name).exists() for name in (CONFIG, MODEL, CHECKPOINTS))


def unbegun_request(out: Path) -> dict[str, Any]:
    """The request for a run that has not begun; empty for all others, and for runs that did not save it."""
    return read_request(out) if unbegun(out) else {}


def clear_unbegun(out: Path) -> None:
    """Removes the files of a run that has not begun. The caller holds its `RunLock`."""
    for entry in out.iterdir() if unbegun(out) else ():
        if entry.name not in (LOCK, FORMAT_FILE):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def remove_stale(run: Path) -> None:
    """Removes files that a crashed process left half written."""
    for folder in (run, run / CHECKPOINTS):
        remove_unfinished(folder)


class RunLock:
    """Keeps other processes out of a run folder. The operating system releases the lock when the process ends.

    The file has the number of the process and the name of its machine.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / LOCK

    def __enter__(self) -> RunLock:
        try:
            handle = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            problem = denied(self.file.parent, "write there") if isinstance(error, PermissionError) else error.strerror
            raise RunError(f"{self.file.parent}: the run cannot be changed: {problem}") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = " on ".join(os.read(handle, 300).decode().split()) or "unknown"
            os.close(handle)
            raise RunError(f"{self.file.parent}: the run folder is in use by process {owner}; wait or stop it") from None
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()} {platform.node()}\n".encode())
        self._handle = handle
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Keep the file: if it were removed, two processes could lock two different files of the same name.
        os.close(self._handle)


@contextmanager
def locked_folder(out: Path, resume: bool, request: dict[str, Any]) -> Iterator[None]:
    """Locks the folder of the run. If a new run fails before anything was trained, its files are removed again.

    request: what is requested of a new run, for a process that resumes it although it has not begun.
    """
    was_there = out.is_dir()
    if not resume:
        create_folder(out)
    with RunLock(out):
        try:
            if not resume:
                clear_unbegun(out)
                write_format(out, request)
            yield
        except BaseException:
            logged = (out / LOG).exists() and (out / LOG).stat().st_size
            if not resume and not logged and not any((out / CHECKPOINTS).glob("step-*")):
                shutil.rmtree(out, ignore_errors=True)
                if was_there:
                    out.mkdir(exist_ok=True)
            raise


def weights_hash(run: Path) -> str:
    """A hash of the published weights of a run."""
    file = run / MODEL
    if not file.is_file():
        raise RunError(f"{run}: there is no {MODEL}, so nothing can start from this run yet")
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]


def complete(folder: Path) -> bool:
    """Whether the training of a run has finished."""
    lines = records(folder)
    return bool(lines) and lines[-1]["event"] == "summary"


def records(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's log; others are of a process that was killed, or damaged."""
    log = folder / LOG
    lines = log.read_text("utf-8", errors="replace").split("\n") if log.exists() else []
    return [record for line in lines if (record := log_record(line))]


def log_record(line: str | bytes) -> dict[str, Any]:
    """The record in a line of a log; empty if it holds none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or not isinstance(event := found.get("event"), str):
        return {}
    numbers = [value for key, value in found.items() if key != "event"] if event in MEASURED else []
    whole = all(value is None or isinstance(value, int | float) for value in numbers)
    return found if whole and (event not in MEASURED or isinstance(found.get("step"), int)) else {}


def remember_plan(folder: Path, plan: Mapping[str, Any], runs: str) -> None:
    """Saves what the runs in a folder (its folds or rounds) are trained on. Raises ConfigError if they were begun otherwise."""
    file = folder / PLAN
    kept = read_json(file, "restore it, or choose another --out") if file.exists() else plan
    for name, value in plan.items():
        if kept.get(name) != value:
            raise ConfigError(
                f"{folder}: its {runs} were begun with {name} {kept.get(name)}, not {value}; repeat that command, or choose "
                "another --out"
            )
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(plan, indent=1) + "\n")
