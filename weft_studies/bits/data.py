"""Sequences of bit vectors, generated, written as text, as a corpus, and as batches.

Those of Graves et al. 2014, on which Neural Turing Machines are tested:

    0110 1011 | _ _ → 0110 1011             copy (a delimiter; then a blank for each vector to write)
    0110 1011 *2 _ _ _ _ _ → 0110 1011 0110 1011 .    repeat copy (the number of copies; the end is written as .)
    | 01 10 | 11 00 ? 01 10 _ _ → 11 00     associative recall (items after |, a question after ?)

Those that need a stack or a counter (Joulin & Mikolov 2015; Grefenstette et al. 2015), for vectors of 8, 2, 2 and 4 bits:

    0110 1011 | _ _ → 1011 0110             reverse
    10 10 | _ _ _ _ → 01 01 . .             anbn (a b for each a, then the end), and anb2n with two for each a
    1000 0100 | _ _ _ → 0001 0010 .         dyck2 (the brackets ([ need the closing brackets ]) )

There, further ends may follow, so that the number of blanks does not tell the length of the answer.

A source has a channel for each bit, one for the delimiter | and one for ? or the number of copies; a blank is all zeros. A
target has a channel for each bit and one for the end. Blanks are at the end of a source, one for each vector of the target.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.batch import Batch, Source
from weft.data.batching import lay_out, spread
from weft.data.corpus import Columns, Encoding, Rows
from weft.data.formats import Texts
from weft.errors import DataError

BLANK, END = "_", "."
BITS = re.compile("[01]+")
COPIES = re.compile(r"\*(\d+)")
MEAN, DEVIATION = 5.5, 8.25**0.5
"""Of the numbers from 1 to 10, by which a number of copies is normalised, as in the paper."""
A, B = "10", "01"
BRACKETS = (("1000", "0010"), ("0100", "0001"))
"""The opening and the closing bracket of each kind."""
CLOSES = 0.3
"""The probability of a closing bracket."""
NOTHING = -1
"""The label of a position at which nothing is to be written."""

Frames = NDArray[np.float32]


def read_frames(text: str, width: int) -> tuple[Frames, int]:
    """The frames [S, width + 2] of a source, and how many of them, the last ones, are blanks."""
    words = text.split()
    frames = np.zeros((len(words), width + 2), np.float32)
    for frame, word in zip(frames, words, strict=True):
        if word in ("|", "?"):
            frame[width + (word == "?")] = 1
        elif copies := COPIES.fullmatch(word):
            frame[width + 1] = (int(copies[1]) - MEAN) / DEVIATION
        elif word != BLANK:
            frame[:width] = _bits(word, width)
    blanks = words.count(BLANK)
    if not blanks or words[len(words) - blanks :] != [BLANK] * blanks:
        raise DataError(f"a sequence must end with blanks ({BLANK}), one for each vector to write, not {text[-60:]!r}")
    return frames, blanks


def read_target(text: str, width: int) -> NDArray[np.uint8]:
    """The channels [T, width + 1] of a target."""
    words = text.split()
    channels = np.zeros((len(words), width + 1), np.uint8)
    for channel, word in zip(channels, words, strict=True):
        if word == END:
            channel[width] = 1
        else:
            channel[:width] = _bits(word, width)
    return channels


def write_target(channels: Sequence[Sequence[bool]]) -> str:
    """The text of channels; those with an end are the end, whatever their bits."""
    return " ".join(END if channel[-1] else "".join(str(int(bit)) for bit in channel[:-1]) for channel in channels)


def _bits(word: str, width: int) -> list[int]:
    if len(word) != width or not BITS.fullmatch(word):
        raise DataError(f"{word!r} is not a vector of {width} bits; write zeros and ones, and set task.width to their number")
    return [int(bit) for bit in word]


@dataclass(frozen=True)
class BitBatch(Batch):
    """Sources with labels [B, S, C] for the channels of their blanks, NOTHING elsewhere."""

    source: Source
    labels: Tensor


def bit_encoding(width: int) -> Encoding:
    """The corpus of sequences with vectors of `width` bits."""

    def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
        read = [(read_frames(source, width), read_target(target, width)) for source, target in texts]
        for ((_, blanks), target), (source, expected) in zip(read, texts, strict=True):
            if blanks != len(target):
                raise DataError(f"{source[:40]!r} has {blanks} blanks, but {expected[:40]!r} has {len(target)} vectors")
        return {"source": [frames for (frames, _), _ in read], "target": [target for _, target in read]}, {}

    columns = {"source": f"({width + 2},)float32", "target": f"({width + 1},)uint8"}
    return Encoding(["bits", width], encode, columns, ["source"], unit="sequences")


def make_bits(
    frames: NDArray[Any],
    target: NDArray[Any],
    lengths: Rows,
    blanks: Rows,
    rows: Rows,
    *,
    budget: int = 0,
    rounded: bool = False,
) -> BitBatch:
    """A batch, given all frames, all target channels, and the number of both in each row."""
    (layout,) = lay_out(lengths[:, None], budget=budget, rounded=rounded)
    labels = np.full((*layout.segments.shape, target.shape[1]), NOTHING, np.int64)
    place = np.arange(labels.shape[1])
    labels[: len(rows)][(place >= (lengths - blanks)[:, None]) & (place < lengths[:, None])] = target
    return BitBatch(torch.from_numpy(rows), Source(spread(frames, layout), layout), torch.from_numpy(labels))


def bits_copy(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Vectors of 8 bits to copy: 1 to 20 by default."""
    vectors = _vectors(random, random.randint(shortest or 1, longest or 20), 8)
    return vectors, f"{vectors} |{f' {BLANK}' * len(vectors.split())}", vectors


def bits_repeat(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """1 to 10 vectors of 8 bits, and up to as many copies of them."""
    longest = longest or 10
    vectors, copies = _vectors(random, random.randint(shortest or 1, longest), 8), random.randint(1, longest)
    target = " ".join([*[vectors] * copies, END])
    return vectors, f"{vectors} *{copies}{f' {BLANK}' * len(target.split())}", target


def bits_recall(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """2 to 6 items of three vectors of 6 bits; the one after the item in question is to be written."""
    items = [_vectors(random, 3, 6) for _ in range(max(2, random.randint(shortest or 2, longest or 6)))]
    asked = random.randrange(len(items) - 1)
    text = " ".join(f"| {item}" for item in items)
    return text, f"{text} ? {items[asked]}{f' {BLANK}' * 3}", items[asked + 1]


def bits_reverse(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """Vectors of 8 bits to write from the last to the first: 1 to 20 by default."""
    vectors, question, _ = bits_copy(random, shortest, longest)
    return vectors, question, " ".join(reversed(vectors.split()))


def bits_anbn(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """The rest of a word of the language aⁿbⁿ after its last a, for n from 1 to 20 by default."""
    return _count(random, shortest, longest, 1)


def bits_anb2n(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """The rest of a word of the language aⁿb²ⁿ after its last a."""
    return _count(random, shortest, longest, 2)


def _count(random: Random, shortest: int, longest: int, ratio: int) -> tuple[str, str, str]:
    count = random.randint(shortest or 1, longest or 20)
    _, source, target = _with_ends(random, [A] * count, [B] * (ratio * count))
    return source, source, target  # with the ends, so that every count occurs in every split


def bits_dyck2(random: Random, shortest: int, longest: int) -> tuple[str, str, str]:
    """The closing brackets that a beginning with two kinds of brackets needs: 1 to 20 brackets by default.

    A closing bracket comes with probability 0.3 where it can come, so that the depth grows with the length.
    """
    opened: list[int] = []
    begin = []
    for _ in range(random.randint(shortest or 1, longest or 20)):
        if opened and random.random() < CLOSES:
            begin.append(BRACKETS[opened.pop()][1])
        else:
            opened.append(random.randrange(len(BRACKETS)))
            begin.append(BRACKETS[opened[-1]][0])
    return _with_ends(random, begin, [BRACKETS[kind][1] for kind in reversed(opened)])


def _with_ends(random: Random, begin: list[str], answer: list[str]) -> tuple[str, str, str]:
    """The answer with one end or more."""
    text = " ".join(begin)
    answer = [*answer, *[END] * random.randint(1, 1 + len(answer))]
    return text, f"{text} |{f' {BLANK}' * len(answer)}", " ".join(answer)


def _vectors(random: Random, count: int, width: int) -> str:
    return " ".join(f"{random.getrandbits(width):0{width}b}" for _ in range(count))
