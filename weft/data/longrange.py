"""Generated tasks whose answer depends on tokens far apart, of any length.

    listops       "[MAX 4 3 [MIN 2 3 ] 1 0 ]" → "4": nested operations on digits (Nangia & Bowman 2018), one of ten labels
    recall        "k 3 q 7 d 1 ? q" → "7": the value that stood behind a key (Graves et al. 2014), one of ten labels
    distant_copy  "k d q . . . . ?" → "k d q": what came before a long silence

A function draws what a pair is about, its source and its target. Sources have between `shortest` and `longest` tokens; 0
stands for a length of the task's own, and for a quarter of the longest.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random
from statistics import median

from weft.errors import DataError

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}

MOST_ARGUMENTS, MOST_DEPTH, NESTED = 10, 10, 0.25
"""Of ListOps as the Long Range Arena has it (Tay et al. 2021); the last is the chance of an operation in a digit's place."""

ATTEMPTS = 100_000

KEPT = 8
"""The most symbols that are copied over a distance."""


class _TooLong(Exception):
    """An expression has more tokens than it may have."""


class _Expression:
    """An expression written token by token, given up as soon as it is too long."""

    def __init__(self, random: Random, longest: int) -> None:
        self.random, self.longest = random, longest
        self.tokens: list[str] = []

    def operation(self, depth: int) -> int:
        """Writes an operation with its arguments; gives its value."""
        name = self.random.choice(list(OPERATORS))
        self._write(f"[{name}")
        values = [self.argument(depth + 1) for _ in range(self.random.randint(2, MOST_ARGUMENTS))]
        self._write("]")
        return OPERATORS[name](values)

    def argument(self, depth: int) -> int:
        if depth < MOST_DEPTH and self.random.random() < NESTED:
            return self.operation(depth)
        digit = self.random.randrange(10)
        self._write(str(digit))
        return digit

    def _write(self, token: str) -> None:
        if len(self.tokens) == self.longest:
            raise _TooLong
        self.tokens.append(token)


def listops(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """An expression of the published grammar, drawn again until its length is between the two."""
    longest = longest or 200
    shortest = shortest or longest // 4
    for _ in range(ATTEMPTS):
        expression = _Expression(random, longest)
        try:
            value = expression.operation(1)
        except _TooLong:
            continue
        if len(expression.tokens) >= shortest:
            text = " ".join(expression.tokens)
            return text, text, str(value)
    raise DataError(
        f"generated:listops: no expression of {shortest} to {longest} tokens was found; give a larger `longest`, "
        "or a smaller `shortest`."
    )


def recall(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Keys, each with a digit behind it, and one of them once more. A key has as many letters as it takes to tell all apart."""
    longest = longest or 50
    most = max(1, (longest - 2) // 2)
    count = random.randint(min(most, max(1, ((shortest or longest // 4) - 1) // 2)), most)
    width = next(width for width in range(1, 9) if len(string.ascii_lowercase) ** width >= most)
    keys = [_word(number, width) for number in random.sample(range(len(string.ascii_lowercase) ** width), count)]
    values = [str(random.randrange(10)) for _ in keys]
    asked = random.randrange(count)
    text = " ".join([*(token for pair in zip(keys, values, strict=True) for token in pair), "?", keys[asked]])
    return text, text, values[asked]


def _word(number: int, width: int) -> str:
    """The letters that stand for a number, `width` of them."""
    letters = []
    for _ in range(width):
        number, letter = divmod(number, len(string.ascii_lowercase))
        letters.append(string.ascii_lowercase[letter])
    return "".join(letters)


def distant_copy(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Letters, a silence that fills the text up to its length, and a question mark."""
    longest = longest or 100
    letters = " ".join(random.choices(string.ascii_lowercase, k=random.randint(1, max(1, min(KEPT, longest - 2)))))
    count = random.randint(min(longest, shortest or longest // 4), longest)
    silence = max(1, count - len(letters.split()) - 1)
    return letters, f"{letters} {'. ' * silence}?", letters
