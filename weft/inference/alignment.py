"""Aligns the words of a source with those of its translation, by attention weights between their tokens.

Positions are counted in ink: characters that are not white space. So they do not depend on how a tokenizer writes spaces.
Shapes: T target tokens · S source tokens · U units of a text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise, takewhile

import numpy as np
from numpy.typing import NDArray

from weft.batch import UNK
from weft.data.spelling import is_letter
from weft.data.tokenizer import RESERVED, Tokenizer
from weft.inference.projection import Span
from weft.inference.teacher_forcing import Forced

Weights = NDArray[np.float32]
Ink = tuple[float, float]
"""A range of ink."""

SAME = 0.5
"""Added to the weight between units that are written alike, such as numbers, names and marks."""

NEAR = 0.05
"""Added to the weight between units at the same relative position. It decides if nothing else does."""


def units(text: str, held: Sequence[Span] = ()) -> list[Span]:
    """The words and marks of a text as ranges of characters: runs of letters, single marks, single ideographs, held ranges."""
    found: list[Span] = []
    ends = {start: end for start, end in held if end > start}
    at, grows = 0, False
    while at < len(text):
        if at in ends:
            found.append((at, ends[at]))
            at, grows = ends[at], False
            continue
        word = is_letter(text[at])
        if found and found[-1][1] == at and found[-1] not in held and ((word and grows) or _combines(text[at])):
            found[-1] = (found[-1][0], at + 1)
        elif text[at].isspace():
            grows = False
        else:
            found.append((at, at + 1))
            grows = word
        at += 1
    return found


def _combines(letter: str) -> bool:
    """Whether a character is written together with the one before it."""
    return letter == "\u200d" or unicodedata.category(letter) in ("Mn", "Mc", "Me")


def cross_weights(forced: Forced, target: int, source: int) -> Weights | None:
    """[T, S]: the mean over heads of the layer that aligns best; None if no cross-attention has a weight for each token."""
    found = [weights for name, weights in forced.weights.items() if forced.uses.get(name) == "cross"]
    layers = [weights for weights in found if weights.shape[1:] == (target, source)]
    if not layers:
        return None
    mean: Weights = layers[usual_layer(len(layers))].mean(0)
    return mean


def usual_layer(count: int) -> int:
    """Returns the default layer of `count` layers, counted from 0: the penultimate one, or the only one.

    In trained Transformers the mean over heads aligns best in the penultimate layer (Garg et al. 2019).
    """
    return max(0, count - 2)


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Returns the text that each token adds. A character of several bytes counts for its last token; special ids add none."""
    whole = tokenizer.decode(ids)
    ends = [0]
    for count, token in enumerate(ids, start=1):
        start = tokenizer.decode(ids[:count]) if token >= RESERVED else ""
        common = takewhile(lambda pair: pair[0] == pair[1], zip(start, whole, strict=False))
        ends.append(max(ends[-1], len(list(common))))
    return [whole[start:end] for start, end in pairwise(ends)]


def source_ink(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[Ink]:
    """The range of ink of each token of a source, scaled to the ink of its text. Unknown words count as they are written."""
    unknown = iter(tokenizer.unknown(text))
    written = token_texts(tokenizer, ids)
    sizes = [ink(next(unknown, "")) if token == UNK else ink(piece) for token, piece in zip(ids, written, strict=True)]
    scale = ink(text) / (sum(sizes) or 1)
    return _ranges([size * scale for size in sizes])


def target_ink(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Ink]:
    """The range of ink of each token of a translation."""
    return _ranges([float(ink(piece)) for piece in token_texts(tokenizer, ids)])


def _ranges(sizes: Sequence[float]) -> list[Ink]:
    ends = np.cumsum([0.0, *sizes]).tolist()
    return list(pairwise(ends))


def ink(text: str) -> int:
    """The number of characters that are not white space."""
    return sum(not letter.isspace() for letter in text)


def unit_ink(text: str, spans: Sequence[Span], held: Sequence[Span] = ()) -> list[Ink]:
    """The range of ink of each unit. Held ranges have none."""
    hidden = {start for start, _ in held}
    found, total = [], 0
    for start, end in spans:
        size = 0 if start in hidden else ink(text[start:end])
        found.append((float(total), float(total + size)))
        total += size
    return found


def between_units(
    weights: Weights, tokens: tuple[Sequence[Ink], Sequence[Ink]], spans: tuple[Sequence[Ink], Sequence[Ink]]
) -> Weights:
    """Weights between units [U, U] from weights between tokens [T, S].

    tokens, spans: the ranges of ink of target and source, of tokens and of units. A unit has the mean of its target tokens and
    the sum of its source tokens.
    """
    rows, columns = (_overlaps(each, unit) for each, unit in zip(tokens, spans, strict=True))
    mean = rows.T / np.maximum(1, rows.sum(0))[:, None]
    joined: Weights = (mean @ weights @ columns).astype(np.float32)
    return joined


def _overlaps(tokens: Sequence[Ink], spans: Sequence[Ink]) -> Weights:
    """[tokens, units]: 1 where they share ink, else 0."""
    first, second = np.array(tokens, np.float64).reshape(-1, 1, 2), np.array(spans, np.float64).reshape(1, -1, 2)
    shared = np.minimum(first[..., 1], second[..., 1]) - np.maximum(first[..., 0], second[..., 0])
    overlaps: Weights = (shared > 1e-6).astype(np.float32)
    return overlaps


def likeness(target: Sequence[str], source: Sequence[str]) -> Weights:
    """[T, S]: what similar spelling and position add to the weights between units."""
    same = np.array([[one.casefold() == other.casefold() for other in source] for one in target], np.float32)
    rows, columns = ((np.arange(len(side)) + 0.5) / max(1, len(side)) for side in (target, source))
    near = 1 - np.abs(rows[:, None] - columns[None])
    total: Weights = (SAME * same.reshape(len(target), len(source)) + NEAR * near).astype(np.float32)
    return total
