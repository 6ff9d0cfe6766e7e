"""The files of a server: translations that can be downloaded for a while."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from starlette.exceptions import HTTPException

from weft.tasks.translation.documents import SUFFIXES

KEPT = 30 * 60.0
"""Seconds for which a translated file can be downloaded."""

TOTAL = 256 << 20
"""Bytes of all translated files; beyond that the oldest are deleted."""

SHARED = "WEFT_SHARED"
"""Environment variable with the folder that the processes of a server share."""

NAME = re.compile(r"[0-9a-f]{32}(\.[a-z]{3,5})")


def suffixes() -> list[str]:
    """The ends of the names of files that this server translates."""
    return [*SUFFIXES, *([".docx"] if find_spec("docx") else [])]


def suffix_of(name: str) -> str:
    """The end of a file's name. Raises an HTTP error if such files are not translated."""
    suffix = Path(name).suffix.lower()
    if suffix not in suffixes():
        raise HTTPException(400, f"Invalid request: file format not supported; send one of {', '.join(suffixes())}")
    return suffix


def shared_folder() -> Path:
    """The folder that the processes of a server share, which the first of them makes and deletes in the end."""
    if path := os.environ.get(SHARED):
        return Path(path)
    folder = tempfile.TemporaryDirectory(prefix="weft-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return Path(folder.name)


class FileStore:
    """Files under random names in a folder, which all processes of a server share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, content: bytes, suffix: str) -> str:
        """Keeps a file; returns its name."""
        name = f"{secrets.token_hex(16)}{suffix}"
        files = sorted(((path.stat(), path) for path in self._paths()), key=lambda each: each[0].st_mtime)
        total = len(content) + sum(status.st_size for status, _ in files)
        for status, path in files:
            if total > TOTAL or time.time() - status.st_mtime > KEPT:
                path.unlink(missing_ok=True)
                total -= status.st_size
        (self.folder / name).write_bytes(content)
        return name

    def get(self, name: str) -> bytes:
        """The file with this name. Raises an HTTP error if there is none."""
        path = self.folder / name
        if not NAME.fullmatch(name) or not path.is_file() or time.time() - path.stat().st_mtime > KEPT:
            raise HTTPException(404, "there is no such file; translated files are deleted after half an hour")
        return path.read_bytes()

    def _paths(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if NAME.fullmatch(path.name)]
