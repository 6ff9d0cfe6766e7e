"""Counts what `auto` has to know about the training data, in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from weft.data.formats import Pairs
from weft.data.token_spelling import is_unspaced
from weft.data.tokenizers import Tokenizer
from weft.errors import DataError

UNSPACED = 0.5
"""A side is written without spaces if this share of its letters belongs to such a script."""

FREQUENT = 2
"""How often a character must occur to deserve an id."""

EVERY, STRIDE = 200_000, 16
"""All of the first pairs are looked at, and a regular sample of the others."""

SAMPLE = 4_000
"""Pairs that are tokenised to learn how long they are."""

ORDINARY = 0.995
"""The share of the pairs that must fit into the longest length."""


@dataclass(frozen=True)
class DataSurvey:
    """The training data in numbers; of two, the first is for sources and the second for targets.

    words: words per text · characters: characters per text · unspaced: whether the script has no spaces between words ·
    alphabet: characters that occur more than once
    """

    pairs: int
    words: tuple[float, float]
    characters: tuple[float, float]
    unspaced: tuple[bool, bool]
    alphabet: int


@dataclass(frozen=True)
class Lengths:
    """Tokens per pair, on the longer side and with its end, and a length that nearly all pairs keep to."""

    mean: float
    longest: int


def survey(pairs: Sequence[Pairs]) -> DataSurvey:
    """Reads all pairs once. Of very many, only some are looked at, but all are counted."""
    letters: list[Counter[str]] = [Counter(), Counter()]
    words, count, looked = [0, 0], 0, 0
    for count, pair in enumerate(chain.from_iterable(pairs), start=1):
        if count <= EVERY or count % STRIDE == 0:
            looked += 1
            for side, text in enumerate(pair):
                letters[side].update(text)
                words[side] += len(text.split())
    if not count or not all(letters):
        raise DataError(f"{', '.join(some.name for some in pairs)}: there is no text on at least one side")
    frequent = sum(1 for number in (letters[0] + letters[1]).values() if number >= FREQUENT)
    sides = [(words[side] / looked, letters[side].total() / looked, _is_unspaced(letters[side])) for side in (0, 1)]
    (source, target) = sides
    return DataSurvey(count, (source[0], target[0]), (source[1], target[1]), (source[2], target[2]), frequent)


def _is_unspaced(letters: Counter[str]) -> bool:
    alphabetic = {letter: number for letter, number in letters.items() if letter.isalpha()}
    without = sum(number for letter, number in alphabetic.items() if is_unspaced(letter))
    return without > UNSPACED * max(1, sum(alphabetic.values()))


def lengths(pairs: Sequence[Pairs], count: int, source: Tokenizer, target: Tokenizer) -> Lengths:
    """The lengths of an evenly spaced sample of `count` pairs in tokens."""
    sample = list(islice(chain.from_iterable(pairs), 0, None, max(1, count // SAMPLE)))
    sides = source.encode_batch([pair[0] for pair in sample]), target.encode_batch([pair[1] for pair in sample])
    longer = np.array([max(map(len, pair)) + 1 for pair in zip(*sides, strict=True)])
    return Lengths(float(longer.mean()), int(np.quantile(longer, ORDINARY, method="higher")))
