"""Spellings of tokens, and automata that recognise a term however it is split into tokens.

A term matches whole words only: a letter before or after it would make it another word. In scripts without spaces between
words, a term matches anywhere.

Shapes: S states · V vocabulary.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, takewhile
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from weft.data.batch import EOS, UNK
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.errors import DataError

MET, INSIDE, START = 0, 1, 2
"""States of every automaton: the term is complete; the last letter belongs to another word; the term may begin here.

In state START + p, the first p letters of the term have been written."""

LONGEST = 200
NONE = -1
FAR = 1000
"""The distance to the end of a term that cannot be continued."""

UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # CJK radicals
    (0x3005, 0x3007),  # ideographic iteration mark, closing mark and zero
    (0x3021, 0x3029),  # Suzhou numerals
    (0x3040, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31FF),  # extensions of these
    (0x3400, 0x4DBF),  # Chinese characters
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # halfwidth Katakana
    (0x1AFF0, 0x1B16F),  # more Hiragana and Katakana
    (0x20000, 0x3FFFF),  # more Chinese characters
)
"""Scripts without spaces between words. Korean has spaces."""

States = NDArray[np.uint8]


@dataclass(frozen=True)
class Automaton:
    """The automaton of a term.

    follow  [S, V] the state after each token
    force   [S] the token that continues the term; NONE if none is needed or possible
    left    [S] the number of such tokens still missing; 0 where the text may end
    """

    follow: States
    force: NDArray[np.int64]
    left: NDArray[np.int64]


class Spelling:
    """The spellings of all tokens of a vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = ref(tokenizer)  # a weak reference: a spelling lives as long as its tokenizer
        self.texts = ["" if number < RESERVED else tokenizer.spelling(number) for number in range(tokenizer.size)]
        self.ids = {text: number for number, text in reversed(list(enumerate(self.texts))) if text}
        # Longest tokens first, so that the passes over letters k, k + 1, … visit fewer and fewer tokens.
        self._order = np.argsort([-len(text) for text in self.texts], kind="stable")
        lengths = np.array([len(self.texts[number]) for number in self._order])
        self._counts = [int((lengths > place).sum()) for place in range(int(lengths.max(initial=0)))]
        self._codes = np.zeros((len(self._counts), len(self.texts)), np.uint32)
        for column, number in enumerate(self._order):
            self._codes[: lengths[column], column] = [ord(letter) for letter in self.texts[number]]
        known, place = np.unique(self._codes, return_inverse=True)
        self._words = np.array([is_letter(chr(code)) for code in known])[place].reshape(self._codes.shape)
        self.breaks = np.array([bool(text) and not is_letter(text[0]) for text in self.texts])
        self.breaks[EOS] = True
        self._long = np.array([len(text) > 1 for text in self.texts])
        self.automaton = lru_cache(256)(self._automaton)

    def _automaton(self, term: str, early: bool = False) -> Automaton:
        """The automaton of a term. Raises DataError if the vocabulary cannot spell it.

        early: a token of several letters that completes the term counts as the term, although letters may follow. Such a
        long token mostly ends a word, and after it, it would be too late to avoid the term.
        """
        tokenizer = self._tokenizer()
        assert tokenizer is not None
        ids = tokenizer.encode(" ".join(term.split()))
        word = "".join(self.texts[number] for number in ids).strip(" ")
        if UNK in ids:
            raise DataError(f"the term {term!r} cannot be written: parts of it are not in the vocabulary of the model")
        if not word or len(word) > LONGEST:
            raise DataError(f"the term {term!r} is {'too long' if word else 'empty'}; a term has 1 to {LONGEST} letters")
        follow = self._follow(word)
        if early:
            follow[(follow == START + len(word)) & self._long] = MET
        force = self._force(word, ids)
        return Automaton(follow, force, _distance(follow, force, len(word), is_letter(word[-1])))

    def _follow(self, word: str) -> States:
        letters = sorted(set(word))
        step = _step_table(word, letters)
        kinds = np.where(self._words, len(letters), len(letters) + 1)
        for kind, letter in enumerate(letters):
            kinds[self._codes == ord(letter)] = kind
        state = np.repeat(np.arange(len(step), dtype=np.uint8)[:, None], len(self.texts), 1)
        for place, count in enumerate(self._counts):
            state[:, :count] = step[state[:, :count], kinds[place, :count]]
        follow = np.empty_like(state)
        follow[:, self._order] = state
        follow[START + len(word), EOS] = MET
        return follow

    def _force(self, word: str, ids: list[int]) -> NDArray[np.int64]:
        """The tokens of the tokenizer's own segmentation of the term; in other states the longest token that fits."""
        force = np.full(START + len(word) + 1, NONE, np.int64)
        if not self.texts[ids[0]].strip(" "):
            force[INSIDE], ids = ids[0], ids[1:]
        elif self.texts[ids[0]].startswith(" "):
            force[INSIDE] = ids[0]
        else:
            force[INSIDE] = self.ids.get(" ", NONE)
        place = 0
        for number in ids:
            force[START + place] = number
            place += len(self.texts[number].lstrip(" ") if place == 0 else self.texts[number])
        for place in range(1, len(word)):
            ends = range(len(word), place, -1)
            if force[START + place] == NONE:
                force[START + place] = next((self.ids[word[place:end]] for end in ends if word[place:end] in self.ids), NONE)
        return force


def _step_table(word: str, letters: list[str]) -> States:
    """[S, letters + 2]: the state after each letter of the term, after any other letter, and after a non-letter."""
    table = np.zeros((START + len(word) + 1, len(letters) + 2), np.uint8)
    for state in range(INSIDE, len(table)):
        for kind in range(len(letters) + 2):
            letter = letters[kind] if kind < len(letters) else None
            table[state, kind] = _step(word, state, letter, is_letter(letter) if letter else kind == len(letters))
    return table


def _step(word: str, state: int, letter: str | None, in_word: bool) -> int:
    written = max(0, state - START)
    if written == len(word) and not in_word:
        return MET
    recent: list[str | None] = [*word[:written], letter]
    # Whether there is a letter of the same word before each of them.
    inside = [state == INSIDE, *(is_letter(each) for each in word[:written])]
    for count in range(min(len(word), written + 1), 0, -1):
        begin = len(recent) - count
        if recent[begin:] == list(word[:count]) and not (is_letter(word[0]) and inside[begin]):
            return MET if count == len(word) and not is_letter(word[-1]) else START + count
    return INSIDE if in_word else START


def _distance(follow: States, force: NDArray[np.int64], length: int, pending: bool) -> NDArray[np.int64]:
    """The number of forced tokens from each state to the end of the term."""
    left = np.full(len(follow), FAR, np.int64)
    left[MET] = 0
    if pending:
        left[START + length] = 0
    for _ in range(length + 2):
        for state in np.flatnonzero(force != NONE):
            left[state] = min(left[state], 1 + left[follow[state, force[state]]])
    return left


def is_unspaced(letter: str) -> bool:
    """Whether a character belongs to a script without spaces between words."""
    code = ord(letter)
    return code >= UNSPACED[0][0] and any(first <= code <= last for first, last in UNSPACED)


def is_letter(letter: str) -> bool:
    """Whether a character is part of a word."""
    if is_unspaced(letter):
        return False
    # Halves of surrogate pairs represent the bytes of characters that are not in the vocabulary.
    return letter.isalnum() or letter == "_" or unicodedata.category(letter) in ("Mn", "Mc", "Cs")


_SPELLINGS: WeakKeyDictionary[Tokenizer, Spelling] = WeakKeyDictionary()


def spelling_of(tokenizer: Tokenizer) -> Spelling:
    """The spelling of a tokenizer's vocabulary, computed on first use."""
    if tokenizer not in _SPELLINGS:
        _SPELLINGS[tokenizer] = Spelling(tokenizer)
    return _SPELLINGS[tokenizer]


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Returns the text that each token adds. A character of several bytes counts for its last token; special ids add none."""
    whole = tokenizer.decode(ids)
    ends = [0]
    for count, token in enumerate(ids, start=1):
        start = tokenizer.decode(ids[:count]) if token >= RESERVED else ""
        common = takewhile(lambda pair: pair[0] == pair[1], zip(start, whole, strict=False))
        ends.append(max(ends[-1], len(list(common))))
    return [whole[start:end] for start, end in pairwise(ends)]
