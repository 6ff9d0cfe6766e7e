"""The JSON schema of configurations, kept between processes: making it imports every part, which takes as long as torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import pydantic

from weft.file_access import close_to_others, own_cache, replace_file, why_untrusted

PACKAGES = ("weft", "weft_studies")
"""The packages whose changes are seen. With parts of others the schema is made each time."""

ROOT = Path(__file__).parents[2]


def kept_schema(parts: Iterable[tuple[str, str]], make: Callable[[], str]) -> str:
    """The text that `make` returns for these parts, from the cache if no source has changed since it was made."""
    parts = list(parts)
    if any(place.partition(".")[0] not in PACKAGES for _, place in parts) or (cache := own_cache()) is None:
        return make()
    file = cache / "schemas" / _fingerprint(str(ROOT))  # one for each installation of weft
    key = _fingerprint(repr([parts, _sources(), pydantic.VERSION, sys.version_info[:3]]))
    with suppress(OSError, ValueError):  # missing, or damaged
        begin, text = file.read_text("utf-8").split("\n", 1)
        if begin == f"{key} {_fingerprint(text)}" and not why_untrusted(file):
            return text
    text = make()
    with suppress(OSError):  # a cache that cannot be written
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, f"{key} {_fingerprint(text)}\n{text}")
        close_to_others(file)
    return text


def _sources() -> list[tuple[str, int, int]]:
    """Name, size and time of every source."""
    found = []
    for file in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        status = file.stat()
        found.append((str(file.relative_to(ROOT)), status.st_size, status.st_mtime_ns))
    return found


def _fingerprint(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
