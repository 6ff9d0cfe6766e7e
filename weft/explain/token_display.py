"""One side of a sentence pair for display: its tokens, words and writing direction."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weft.data.batch import BOS, EOS, SPECIALS
from weft.data.token_spelling import is_unspaced
from weft.data.tokenizers.base import RESERVED, Tokenizer
from weft.tasks.translation.attention_alignment import token_texts

Weights = NDArray[np.float32]
Span = tuple[int, int]
"""A range of tokens, [first, last)."""

NAMES = {" ": "␣", SPECIALS[EOS]: "end", SPECIALS[BOS]: "begin"}


@dataclass(frozen=True)
class Side:
    """A text for display. words: the token span of each word · names: the text of each word · rtl: right-to-left."""

    text: str
    tokens: list[str]
    words: list[Span]
    names: list[str]
    rtl: bool = False


def make_side(tokenizer: Tokenizer, ids: Sequence[int]) -> Side:
    """Builds a side from token ids. Spaces separate words; without spaces, and for special tokens, each token is a word."""
    text = tokenizer.decode([token for token in ids if token != EOS])
    tokens, pieces = tokenizer.tokens(ids), token_texts(tokenizer, ids)
    words = find_words(ids, pieces, apart=True)
    names = ["".join(pieces[first:last]).strip() or shown(tokens[first]) for first, last in words]
    return Side(text, tokens, words, names, right_to_left(text))


def find_words(ids: Sequence[int], pieces: Sequence[str], *, apart: bool) -> list[Span]:
    """Returns the token span of each word. apart: in scripts without spaces, make each token a word instead of joining them."""
    words: list[Span] = []
    begin, word, after_special, after_unspaced = 0, "", False, False
    for first, piece in _characters(ids, pieces):
        special, unspaced = ids[first] < RESERVED, any(map(is_unspaced, piece))
        spaced = bool(word.strip()) and (piece[:1].isspace() or word[-1].isspace())
        alone = apart and bool(word.strip()) and (unspaced or after_unspaced)
        if first > begin and (special or after_special or spaced or alone):
            words.append((begin, first))
            begin, word, after_unspaced = first, "", False
        word, after_special, after_unspaced = word + piece, special, unspaced or after_unspaced
    return [*words, (begin, len(ids))] if ids else []


def _characters(ids: Sequence[int], pieces: Sequence[str]) -> list[tuple[int, str]]:
    """Returns (first token, text) of groups of tokens: the bytes of one character, or a single token."""
    groups: list[tuple[int, str]] = []
    begin = 0
    for place, (token, piece) in enumerate(zip(ids, pieces, strict=True)):
        special = token < RESERVED
        if special and begin < place:
            groups.append((begin, ""))
            begin = place
        if piece or special:
            groups.append((begin, piece))
            begin = place + 1
    return [*groups, (begin, "")] if begin < len(ids) else groups


def join_words(weights: Weights, rows: Sequence[Span], columns: Sequence[Span]) -> Weights:
    """Weights between words, [H, words, words]: the mean over a query word's tokens, the sum over a key word's tokens."""
    joined = np.stack([weights[..., first:last].sum(-1) for first, last in columns], -1)
    return np.stack([joined[:, first:last].mean(1) for first, last in rows], 1).astype(np.float32)


def fed(target: Side) -> Side:
    """Returns the decoder's input: BOS and the target without its last token."""
    count = len(target.tokens)
    shifted = [(first + 1, min(last + 1, count)) for first, last in target.words]
    words = [(0, 1), *(span for span in shifted if span[0] < span[1])]
    names = [shown(SPECIALS[BOS]), *target.names][: len(words)]
    return replace(target, tokens=[SPECIALS[BOS], *target.tokens[:-1]], words=words, names=names)


def numbered(count: int) -> Side:
    """Returns a side of numbered slots, for columns that are not tokens."""
    names = [str(place + 1) for place in range(count)]
    return Side("", names, [(place, place + 1) for place in range(count)], names)


def right_to_left(text: str) -> bool:
    """Whether most letters of a text belong to a right-to-left script."""
    kinds = [unicodedata.bidirectional(character) for character in text]
    return sum(kind in ("R", "AL") for kind in kinds) > kinds.count("L")


def shown(token: str) -> str:
    """Returns a token for display, with visible names for the space and special tokens."""
    return NAMES.get(token, token)
