"""The interface of parallel data: pairs of texts that can be read any number of times."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator

Texts = list[tuple[str, str]]


class Pairs(ABC):
    """(source, target) pairs that can be read any number of times, in constant memory."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, str]]: ...

    @abstractmethod
    def digest(self) -> str:
        """A hash of everything that the pairs depend on."""


def combine(*parts: str) -> str:
    """One hash of several texts."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
