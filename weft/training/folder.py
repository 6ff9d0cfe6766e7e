"""A run's folder: never overwritten in silence, and used by one process at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType

from weft.errors import RunError

LOCK = "run.lock"
CHECKPOINTS = "checkpoints"
ASIDE = ".tmp-"
"""How names begin of what is still being written. What has such a name when a run starts was left by a process that died."""


def prepare_folder(out: Path, resume: bool = False) -> None:
    """Make the folder of a new run, or check that there is one to resume."""
    if resume:
        if not out.is_dir():
            raise RunError(f"{out}: there is no such run to resume; start it without --resume")
        if not (out / "config.yaml").is_file():
            raise RunError(f"{out}: this folder is not a run (it has no config.yaml), so there is nothing to resume")
        return
    if out.exists() and not out.is_dir():
        raise RunError(f"{out}: is a file; a run needs a folder of its own")
    if out.is_dir() and any(entry.name != LOCK for entry in out.iterdir()):
        hint = f"go on with `weft train --resume {out}`, or choose another folder"
        raise RunError(f"{out}: the folder is not empty, and nothing in it is overwritten; {hint}")
    out.mkdir(parents=True, exist_ok=True)


def remove_stale(run: Path) -> None:
    """Remove what a process that died had half written."""
    for folder in (run, run / CHECKPOINTS):
        for entry in folder.glob(f"{ASIDE}*"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


class RunLock:
    """Keeps other processes out of a run folder. The system lets go of it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / LOCK
        self._handle: int | None = None

    def __enter__(self) -> RunLock:
        handle = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 32).decode().strip() or "unknown"
            os.close(handle)
            raise RunError(f"run folder {self.file.parent} is in use by process {owner}; wait for it or stop it") from None
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        self._handle = handle
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # The file stays: removing it would let two processes hold locks on two files of the same name.
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
