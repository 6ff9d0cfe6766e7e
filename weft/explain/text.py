"""One side of a pair as people read it: tokens, the words they make up, and the direction of writing."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from weft.batch import BOS, EOS, SPECIALS
from weft.data.spelling import is_unspaced
from weft.data.tokenizer import RESERVED, Tokenizer

Weights = NDArray[np.float32]
Span = tuple[int, int]
"""[first, past the last) of some tokens."""

NAMES = {" ": "␣", SPECIALS[EOS]: "end", SPECIALS[BOS]: "begin"}


@dataclass(frozen=True)
class Side:
    """text · tokens, a piece of it each · words: which tokens make up each, with their names · rtl: written from the right."""

    text: str
    tokens: list[str]
    words: list[Span]
    names: list[str]
    rtl: bool = False


def make_side(tokenizer: Tokenizer, ids: Sequence[int]) -> Side:
    """A side from its ids. Words are what spaces part; in scripts without spaces each token is one, special tokens too."""
    text = tokenizer.decode([token for token in ids if token != EOS])
    tokens, pieces = tokenizer.tokens(ids), token_texts(tokenizer, ids)
    words = find_words(ids, pieces, apart=True)
    names = ["".join(pieces[first:last]).strip() or shown(tokens[first]) for first, last in words]
    return Side(text, tokens, words, names, right_to_left(text))


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text. A character of several bytes is added by the last of them; special ids add nothing."""
    whole = tokenizer.decode(ids)
    ends = [0]
    for count in range(1, len(ids) + 1):
        known = _alike(tokenizer.decode(ids[:count]), whole, ends[-1]) if ids[count - 1] >= RESERVED else ends[-1]
        ends.append(known)
    return [whole[start:end] for start, end in pairwise(ends)]


def _alike(text: str, whole: str, at_least: int) -> int:
    """How many characters two texts begin with alike, counted on from `at_least`."""
    count = at_least
    while count < min(len(text), len(whole)) and text[count] == whole[count]:
        count += 1
    return count


def find_words(ids: Sequence[int], pieces: Sequence[str], *, apart: bool) -> list[Span]:
    """Which tokens make up each word. `apart`: tokens of scripts without spaces stand alone, instead of all together."""
    words: list[Span] = []
    begin, so_far, after_special, after_unspaced = 0, "", False, False
    for first, piece in _characters(ids, pieces):
        special, unspaced = ids[first] < RESERVED, any(map(is_unspaced, piece))
        spaced = bool(so_far.strip()) and (piece[:1].isspace() or so_far[-1].isspace())
        alone = apart and bool(so_far.strip()) and (unspaced or after_unspaced)
        if first > begin and (special or after_special or spaced or alone):
            words.append((begin, first))
            begin, so_far, after_unspaced = first, "", False
        so_far, after_special, after_unspaced = so_far + piece, special, unspaced or after_unspaced
    return [*words, (begin, len(ids))] if ids else []


def _characters(ids: Sequence[int], pieces: Sequence[str]) -> list[tuple[int, str]]:
    """(first token, text) of tokens that add text together: the bytes of one character, or a token alone."""
    found: list[tuple[int, str]] = []
    begin = 0
    for place, (token, piece) in enumerate(zip(ids, pieces, strict=True)):
        special = token < RESERVED
        if special and begin < place:
            found.append((begin, ""))
            begin = place
        if piece or special:
            found.append((begin, piece))
            begin = place + 1
    return [*found, (begin, "")] if begin < len(ids) else found


def join_words(weights: Weights, rows: Sequence[Span], columns: Sequence[Span]) -> Weights:
    """Weights between words, [H, words, words]: from a word, on the mean over its tokens, to all tokens of another."""
    joined = np.stack([weights[..., first:last].sum(-1) for first, last in columns], -1)
    return np.stack([joined[:, first:last].mean(1) for first, last in rows], 1).astype(np.float32)


def fed(written: Side) -> Side:
    """What a decoder was fed: the beginning and all it wrote but the last token."""
    count = len(written.tokens)
    shifted = [(first + 1, min(last + 1, count)) for first, last in written.words]
    words = [(0, 1), *(span for span in shifted if span[0] < span[1])]
    names = [shown(SPECIALS[BOS]), *written.names][: len(words)]
    return replace(written, tokens=[SPECIALS[BOS], *written.tokens[:-1]], words=words, names=names)


def numbered(count: int) -> Side:
    """Slots that are no tokens: they have numbers."""
    names = [str(place + 1) for place in range(count)]
    return Side("", names, [(place, place + 1) for place in range(count)], names)


def right_to_left(text: str) -> bool:
    """Whether most letters of a text belong to a script that is written from the right."""
    kinds = [unicodedata.bidirectional(character) for character in text]
    return sum(kind in ("R", "AL") for kind in kinds) > kinds.count("L")


def shown(token: str) -> str:
    """A token as it can be seen: a space and the special ones have signs of their own."""
    return NAMES.get(token, token)
