"""Cuts lines that are too long for a model between words."""

from __future__ import annotations

from weft.data.copying import Numbering
from weft.data.tokenizer import Tokenizer

Encodes = Tokenizer | Numbering


def cut(line: str, tokenizer: Encodes, room: int) -> list[list[int]]:
    """The ids of a line in parts of at most `room` ids, cut between words where possible."""
    words = [part for word in line.split() for part in _fit(word, tokenizer, room)]
    sizes = [len(ids) for ids in tokenizer.encode_batch(words)]
    # In some vocabularies a space is a separate token.
    space = -(-(len(tokenizer.encode(" ".join(words))) - sum(sizes)) // max(1, len(words) - 1))
    parts: list[list[str]] = []
    filled = room
    for word, size in zip(words, sizes, strict=True):
        filled += max(0, space) + size
        if filled > room:
            parts.append([])
            filled = size
        parts[-1].append(word)
    return [ids for part in parts for ids in _checked(part, tokenizer, room)]


def _checked(words: list[str], tokenizer: Encodes, room: int) -> list[list[int]]:
    """The ids of some words; in halves if they are too many, since a word may have more tokens in context than alone."""
    ids = tokenizer.encode(" ".join(words))
    if len(ids) <= room or len(words) < 2:
        return [ids[start : start + room] for start in range(0, len(ids), max(1, room))]
    middle = len(words) // 2
    return _checked(words[:middle], tokenizer, room) + _checked(words[middle:], tokenizer, room)


def _fit(word: str, tokenizer: Encodes, room: int) -> list[str]:
    """A word, halved until its parts fit."""
    if len(word) < 2 or len(tokenizer.encode(word)) <= room:
        return [word]
    middle = len(word) // 2
    return _fit(word[:middle], tokenizer, room) + _fit(word[middle:], tokenizer, room)
