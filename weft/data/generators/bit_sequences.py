"""Generated sequences of bit vectors, on which Neural Turing Machines are tested (Graves et al. 2014); see
`weft.tasks.bits.data`.

A function draws the subject of a pair, its source and its target. `shortest` and `longest` count vectors (bits_copy and
bits_repeat) or items (bits_recall); 0 means the default.
"""

from __future__ import annotations

from random import Random

BLANK, END = "_", "."


def bits_copy(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Vectors of 8 bits to copy: 1 to 20 by default."""
    said = _vectors(random, random.randint(shortest or 1, longest or 20), 8)
    return said, f"{said} |{f' {BLANK}' * len(said.split())}", said


def bits_repeat(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """1 to 10 vectors of 8 bits, and up to as many copies of them."""
    longest = longest or 10
    said, copies = _vectors(random, random.randint(shortest or 1, longest), 8), random.randint(1, longest)
    target = " ".join([*[said] * copies, END])
    return said, f"{said} *{copies}{f' {BLANK}' * len(target.split())}", target


def bits_recall(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """2 to 6 items of three vectors of 6 bits; the one after the item in question is to be written."""
    items = [_vectors(random, 3, 6) for _ in range(max(2, random.randint(shortest or 2, longest or 6)))]
    asked = random.randrange(len(items) - 1)
    text = " ".join(f"| {item}" for item in items)
    return text, f"{text} ? {items[asked]}{f' {BLANK}' * 3}", items[asked + 1]


def _vectors(random: Random, count: int, width: int) -> str:
    return " ".join(f"{random.getrandbits(width):0{width}b}" for _ in range(count))
