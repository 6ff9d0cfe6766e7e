"""Arrays in .npz and .npy files, which may be damaged or hostile: never with pickles, and no larger than the file can hold."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import RunError
from weft.file_access import why_unreadable

LARGEST = 1 << 28
"""Bytes that an archive may claim to hold besides 64 times its own size."""


def read_arrays(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name. Raises RunError for another file."""
    with _reading(file, "npz"):
        with zipfile.ZipFile(file) as members:
            claimed = sum(member.file_size for member in members.infolist())
        if claimed > 64 * file.stat().st_size + LARGEST:
            raise RunError(f"{file}: it claims to hold {claimed:,} bytes, far more than the file can")
        with np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        if other := next((name for name, value in found.items() if not isinstance(value, np.ndarray)), None):
            raise ValueError(f"{other} is no array")
        return found


def read_array(file: Path) -> NDArray[Any]:
    """The array of an .npy file. Raises RunError for another file."""
    with _reading(file, "npy"):
        found = np.load(file, allow_pickle=False)
        if not isinstance(found, np.ndarray):
            raise ValueError("it holds several arrays")
        return found


@contextmanager
def _reading(file: Path, kind: str) -> Iterator[None]:
    if problem := why_unreadable(file):
        raise RunError(f"{file}: {problem}")
    try:
        yield
    except RunError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds for damaged files
        raise RunError(f"{file}: the {kind} file is cut short or damaged ({str(error)[:120]})") from None
