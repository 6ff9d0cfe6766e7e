"""API keys: from the command line, the environment or a file. Only their hashes are kept."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from weft.data.lines import check_file, read_lines
from weft.errors import ConfigError

ENVIRONMENT = "WEFT_API_KEYS"
"""Environment variable with keys, separated by commas."""


@dataclass(frozen=True)
class Key:
    """A key as it is kept. rate: its own requests per minute; None: as for all · admin: whether it may reload the models."""

    digest: bytes
    name: str
    rate: int | None = None
    admin: bool = False


def parse_key(line: str, number: int, where: str = "") -> Key | None:
    """A line of a key file: the key, then optionally `name=…`, `rate=…` and `admin`. Blank lines and comments (#) give None."""
    text = line.strip()
    if not text or text.startswith("#"):
        return None
    secret, *rest = text.partition(" #")[0].split()
    options = dict(word.partition("=")[::2] for word in rest)
    if unknown := set(options) - {"name", "rate", "admin"}:
        raise ConfigError(f"{where}line {number}: unknown word {min(unknown)!r}; write KEY, then name=…, rate=… or admin")
    rate = options.get("rate")
    if rate is not None and not rate.isdecimal():
        raise ConfigError(f"{where}line {number}: rate is a number of requests per minute, not {rate!r}")
    name = options.get("name") or f"key {number}"
    return Key(sha256(secret.encode()).digest(), name, None if rate is None else int(rate), "admin" in options)


def read_keys(given: Iterable[str], file: str, admin: Iterable[str] = ()) -> tuple[Key, ...]:
    """All keys: given ones, those of the environment, and those of a file. Raises ConfigError for a file without keys."""
    own = [*given, *(each for each in os.environ.get(ENVIRONMENT, "").split(",") if each.strip())]
    keys = [Key(sha256(each.strip().encode()).digest(), f"option {k}") for k, each in enumerate(own, start=1) if each.strip()]
    keys += [Key(sha256(each.strip().encode()).digest(), f"admin {k}", admin=True) for k, each in enumerate(admin, start=1)]
    if file:
        lines = enumerate(read_lines(check_file(Path(file))), start=1)
        found = [key for number, line in lines if (key := parse_key(line, number, f"{file}, ")) is not None]
        if not found:
            raise ConfigError(f"{file}: there is no key in the file; leave --api-keys out to serve everyone")
        keys += found
    return tuple(keys)


def find_key(keys: Iterable[Key], given: str) -> Key | None:
    """The key with this secret. It is compared with all keys, so that the time taken reveals nothing."""
    digest, found = sha256(given.encode("utf-8", "replace")).digest(), None
    for key in keys:
        if hmac.compare_digest(digest, key.digest):
            found = key
    return found
