"""JSON that others have written, or that may be damaged: errors say where it is, and every text in it is valid Unicode."""

import json
from pathlib import Path
from typing import Any

from weft.errors import DataError, RunError
from weft.file_access import why_unreadable

LARGEST = 1 << 28
"""Bytes of the largest file that is read as one JSON text."""


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text. Raises DataError, which says `where`, if it is none or has halves of surrogate pairs."""
    try:
        found = json.loads(text)
        if "\\u" in text:  # only an escape can be half of a pair
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        letter = error.object[error.start]
        raise DataError(
            f"{where}: {ascii(letter)[1:-1]} is half of a surrogate pair, which is no text: {text[:80]!r}."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error}): {text[:80]!r}.") from None
    return found


def read_json(file: Path, remedy: str = "") -> dict[str, Any]:
    """The object in a JSON file. Raises RunError if it holds something else; `remedy` ends the message."""
    if problem := why_unreadable(file):
        raise RunError(f"{file}: {problem}")
    advice = f"; {remedy}" if remedy else ""
    if (size := file.stat().st_size) > LARGEST:
        raise RunError(f"{file}: it has {size:,} bytes, too many for such a file{advice}")
    try:
        content = json.loads(file.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RunError(f"{file}: byte {error.start} is not UTF-8{advice}") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{file}: not JSON, or cut short: {error}{advice}") from None
    if not isinstance(content, dict):
        raise RunError(f"{file}: it must hold a JSON object, not a {type(content).__name__}{advice}")
    return content
