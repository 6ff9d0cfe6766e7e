"""Equal and nearly equal pairs of any number, remembered as hashes of eight bytes."""

from __future__ import annotations

import hashlib
import re
from array import array

NOT_WORDS = re.compile(r"[\W_]+")
DIGITS = re.compile(r"\d+")
FULL = 0.6
"""Share of the places of a table that may be filled."""


class HashSet:
    """A set of 64-bit hashes in one table, some 18 bytes for each; a Python set takes four times as much."""

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 << 10))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: int) -> bool:
        """Adds a hash. Returns whether it is new."""
        key = key or 1  # 0 marks a free place
        if self._count >= FULL * len(self._table):
            self._grow()
        if not self._place(self._table, key):
            return False
        self._count += 1
        return True

    @staticmethod
    def _place(table: array[int], key: int) -> bool:
        mask = len(table) - 1
        at = key & mask
        while found := table[at]:
            if found == key:
                return False
            at = (at + 1) & mask
        table[at] = key
        return True

    def _grow(self) -> None:
        larger = array("Q", bytes(16 * len(self._table)))
        for key in self._table:
            if key:
                self._place(larger, key)
        self._table = larger


def pair_hash(source: str, target: str) -> int:
    """A hash of a pair."""
    return _hash(f"{source}\0{target}")


def near_hash(source: str, target: str) -> int:
    """A hash that is the same for pairs that differ only in case, numbers, punctuation, symbols and white space."""
    return _hash(f"{bare(source) or source}\0{bare(target) or target}")


def bare(text: str) -> str:
    """The letters of a text in lower case, with 0 for each number."""
    return NOT_WORDS.sub("", DIGITS.sub("0", text.casefold()))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
