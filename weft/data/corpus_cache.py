"""The disk cache of prepared data: folders named by a hash of what they were made from.

A folder is built aside and renamed when complete, so a folder with the right name is whole, and two processes that build the
same one at once do not interfere.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from weft.errors import DataError, RunError
from weft.file_access import default_mode

Kept = TypeVar("Kept")

BROKEN = (OSError, ValueError, KeyError, TypeError, RunError)
"""Raised when a cached folder is missing or damaged."""

STALE = 86_400.0
"""Seconds after which an abandoned build is removed."""


def cache_folder() -> Path:
    """The default place of prepared data."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"


def find_or_build(folder: Path, key: Any, opened: Callable[[Path], Kept], build: Callable[[Path], None]) -> Kept:
    """What `opened` reads from the cached folder that `key`, plain data, names; `build` fills the folder if it is missing.

    `opened` raises one of `BROKEN` if the folder is missing or a failing disk has damaged it.
    """
    place = folder / hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()
    with suppress(*BROKEN):
        return opened(place)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        aside = Path(tempfile.mkdtemp(prefix=place.name + ".", suffix=".part", dir=folder))
        try:
            with ExitStack() as stack:
                if gc.isenabled():  # the collector would spend half of the time walking over lists of ids and find nothing
                    gc.disable()
                    stack.callback(gc.enable)
                build(aside)
            aside.chmod(default_mode(folder=True))  # a temporary folder is private
            _rename(aside, place, opened)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        free = "" if isinstance(error, PermissionError) else "Make room there. "
        raise DataError(
            f"{folder}: the tokenised data could not be written: {error.strerror or error}. The unfinished part was removed. "
            f"{free}To use another folder, set data.cache or the environment variable XDG_CACHE_HOME."
        ) from None
    return opened(place)


def _rename(aside: Path, place: Path, opened: Callable[[Path], Any]) -> None:
    """Moves a complete folder into its place, unless another process was first."""
    try:
        os.rename(aside, place)
    except OSError:
        with suppress(*BROKEN):
            opened(place)
            return
        shutil.rmtree(place)
        os.rename(aside, place)


def _sweep(folder: Path) -> None:
    """Removes what killed builds left behind long ago."""
    for part in folder.glob("*.part"):
        with suppress(FileNotFoundError):  # another process may complete it at this moment
            if time.time() - part.stat().st_mtime > STALE:
                shutil.rmtree(part, ignore_errors=True)
