"""How tokens are spelled, and automata that follow a term through them, however it is cut into tokens.

A term is found as whole words: letters before and after it would make it another word. Scripts that are written
without spaces have no such words, so there a term is found anywhere.

Shapes: S states · V vocabulary.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from weft.batch import EOS, UNK
from weft.data.tokenizer import RESERVED, Tokenizer
from weft.errors import DataError

MET, INSIDE, START = 0, 1, 2
"""States of every automaton: the term has been said; the last letter belongs to some word; the term may begin here.

State START + p: the first p letters of the term have been said."""

LONGEST = 200
NONE = -1
FAR = 1000
"""How far from its end a term is that cannot be continued."""

UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # parts of Chinese characters
    (0x3005, 0x3007),  # signs for one again, for an end, for zero
    (0x3021, 0x3029),  # Suzhou numerals
    (0x3040, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31FF),  # more of them
    (0x3400, 0x4DBF),  # Chinese characters
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # Katakana of half width
    (0x1AFF0, 0x1B16F),  # more Hiragana and Katakana
    (0x20000, 0x3FFFF),  # more Chinese characters
)
"""Scripts that put no spaces between words. Korean is not among them."""

States = NDArray[np.uint8]


@dataclass(frozen=True)
class Automaton:
    """follow [S, V]: the state after each token · force [S]: the token that brings the term on, NONE if none is needed or
    there is none · left [S]: how many such tokens are missing; 0 where the text may end."""

    follow: States
    force: NDArray[np.int64]
    left: NDArray[np.int64]


class Spelling:
    """The tokens of a vocabulary as letters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = ref(tokenizer)  # no more than that: spellings are kept for as long as their tokenizers live
        self.texts = ["" if number < RESERVED else tokenizer.spelling(number) for number in range(tokenizer.size)]
        self.ids = {text: number for number, text in reversed(list(enumerate(self.texts))) if text}
        # The longest tokens first, so that a pass over letters k, k + 1, … goes over ever fewer of them.
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
        """The automaton of a term. Raises DataError for one that the vocabulary cannot spell.

        early: a token of several letters that completes the term counts as saying it, although letters may follow: so long a
        piece mostly ends a word, and once it is said, it is too late to avoid the term.
        """
        tokenizer = self._tokenizer()
        assert tokenizer is not None
        ids = tokenizer.encode(" ".join(term.split()))
        word = "".join(self.texts[number] for number in ids).strip(" ")
        if UNK in ids:
            raise DataError(f"the term {term!r} has parts that the model's vocabulary does not have; it can never be written")
        if not word or len(word) > LONGEST:
            raise DataError(f"the term {term!r} is {'empty' if not word else 'too long'}; a term has 1 to {LONGEST} letters")
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
        """Where the tokenizer's own way of cutting the term passes, its tokens; elsewhere the longest that fits."""
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
    """[S, letters + 2]: the state after one letter of the term, after any other letter, after what is no letter."""
    table = np.zeros((START + len(word) + 1, len(letters) + 2), np.uint8)
    for state in range(INSIDE, len(table)):
        for kind in range(len(letters) + 2):
            letter = letters[kind] if kind < len(letters) else None
            table[state, kind] = _step(word, state, letter, is_letter(letter) if letter else kind == len(letters))
    return table


def _step(word: str, state: int, letter: str | None, in_word: bool) -> int:
    said = max(0, state - START)
    if said == len(word) and not in_word:
        return MET
    recent: list[str | None] = [*word[:said], letter]
    # What stands before the first of them: inside a word there is a letter, elsewhere none.
    inside = [state == INSIDE, *(is_letter(each) for each in word[:said])]
    for count in range(min(len(word), said + 1), 0, -1):
        begin = len(recent) - count
        if recent[begin:] == list(word[:count]) and not (is_letter(word[0]) and inside[begin]):
            return MET if count == len(word) and not is_letter(word[-1]) else START + count
    return INSIDE if in_word else START


def _distance(follow: States, force: NDArray[np.int64], length: int, pending: bool) -> NDArray[np.int64]:
    """How many forced tokens each state is away from the end of the term."""
    left = np.full(len(follow), FAR, np.int64)
    left[MET] = 0
    if pending:
        left[START + length] = 0
    for _ in range(length + 2):
        for state in np.flatnonzero(force != NONE):
            left[state] = min(left[state], 1 + left[follow[state, force[state]]])
    return left


def is_unspaced(letter: str) -> bool:
    """Whether this belongs to a script that puts no spaces between words."""
    code = ord(letter)
    return code >= UNSPACED[0][0] and any(first <= code <= last for first, last in UNSPACED)


def is_letter(letter: str) -> bool:
    """Whether this belongs to the word it stands next to."""
    if is_unspaced(letter):
        return False
    # Halves of surrogate pairs stand for the bytes of characters that have no token of their own.
    return letter.isalnum() or letter == "_" or unicodedata.category(letter) in ("Mn", "Mc", "Cs")


_SPELLINGS: WeakKeyDictionary[Tokenizer, Spelling] = WeakKeyDictionary()


def spelling_of(tokenizer: Tokenizer) -> Spelling:
    """The spelling of this vocabulary, made when first asked for."""
    if tokenizer not in _SPELLINGS:
        _SPELLINGS[tokenizer] = Spelling(tokenizer)
    return _SPELLINGS[tokenizer]
