"""Tokenizers without a learned segmentation: words, characters, bytes."""

import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from inspect import signature
from itertools import chain
from typing import ClassVar

from weft.data.batch import UNK
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.errors import DataError

BYTES = 256
JOINED = "￭"
"""Marks the sides on which punctuation touches its neighbours, so that decoding can restore the text."""

NO_TEXT = "there is no text to train a vocabulary on."
OTHER_TOKENIZER = "it was written by another tokenizer"

WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


def byte_name(value: int) -> str:
    return f"<0x{value:02X}>"


def byte_ids(text: str) -> list[int]:
    """The UTF-8 bytes of a text as ids, which come after the special ids."""
    return [RESERVED + byte for byte in text.encode("utf-8")]


class _Counted(Tokenizer):
    """Keeps a list of units. The id of a unit is its index in the list, after the special ids. plural: what they are called."""

    units: list[str]
    plural: ClassVar[str]

    def _set(self, units: list[str]) -> None:
        self.units = units
        self.ids = {unit: number for number, unit in enumerate(units, start=self.first)}

    @property
    def first(self) -> int:
        """The id of the first unit."""
        return RESERVED

    @property
    def size(self) -> int:
        return self.first + len(self.units)

    @abstractmethod
    def split(self, text: str) -> Sequence[str]:
        """The units of a text."""

    def train(self, texts: Iterable[str], size: int) -> None:
        """Keeps the most frequent units, up to `size` ids in total; equally frequent ones are ordered by code points."""
        if size <= self.first:
            with_bytes = f" and {BYTES} are bytes (see byte_fallback)" if self.first > RESERVED else ""
            raise DataError(f"a vocabulary of {size} leaves no room for {self.plural}: {RESERVED} ids are special{with_bytes}.")
        counts = Counter(chain.from_iterable(map(self.split, texts)))
        if not counts:
            raise DataError(NO_TEXT)
        self._set(sorted(counts, key=lambda unit: (-counts[unit], unit))[: size - self.first])

    def extended(self, texts: Iterable[str], more: int) -> Tokenizer:
        """Appends the most frequent unknown units."""
        counts = Counter(unit for unit in chain.from_iterable(map(self.split, texts)) if unit not in self.ids)
        other = copy(self)
        other._set([*self.units, *sorted(counts, key=lambda unit: (-counts[unit], unit))[:more]])
        return other

    def unknown(self, text: str) -> list[str]:
        return [] if self.first > RESERVED else [unit for unit in self.split(text) if unit not in self.ids]

    def named(self, words: Sequence[str]) -> Tokenizer:
        other = copy(self)
        other.units = [*self.units, *words]
        return other

    def options(self) -> dict[str, bool]:
        """The options, which are saved with the units."""
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def piece(self, number: int) -> str:
        return byte_name(number - RESERVED) if number < self.first else self.units[number - self.first]

    def dump(self) -> bytes:
        content = {"tokenizer": type(self).__name__, "options": self.options(), "units": self.units}
        return json.dumps(content, ensure_ascii=False, indent=0).encode()

    def restore(self, content: bytes) -> None:
        saved = json.loads(content)
        if not isinstance(saved, dict) or saved.get("tokenizer") != type(self).__name__:
            raise ValueError(OTHER_TOKENIZER)
        absent = {name: option.default for name, option in signature(type(self)).parameters.items()}
        if absent | (saved.get("options") or {}) != self.options():  # options that were added later have their defaults
            raise ValueError(f"it was trained with the options {saved.get('options')}, not {self.options()}")
        units = saved["units"]
        if not isinstance(units, list) or not all(isinstance(unit, str) for unit in units):
            raise ValueError("its units are no list of texts")
        self._set(units)


class WordTokenizer(_Counted):
    """Words separated by spaces, with punctuation as separate tokens; a word outside the vocabulary becomes UNK.

    Punctuation carries a mark on each side that touches its neighbour ("Oh, no" becomes "Oh", "￭,", "no"), so that decoding
    restores the text except for repeated spaces.

    lowercase    convert text to lower case
    punctuation  separate punctuation from words; otherwise split at spaces only
    line_ends    treat a line end as a word, which a language model needs
    """

    plural: ClassVar[str] = "words"

    def __init__(self, *, lowercase: bool = False, punctuation: bool = True, line_ends: bool = False) -> None:
        self.lowercase, self.punctuation, self.line_ends = lowercase, punctuation, line_ends
        self._set([])

    def split(self, text: str) -> list[str]:
        """The words and punctuation marks of a text, and its line ends."""
        if self.lowercase:
            text = text.lower()
        if not self.line_ends:
            return self._words(text)
        first, *others = (self._words(line) for line in text.split("\n"))
        return [*first, *chain.from_iterable(("\n", *words) for words in others)]

    def _words(self, text: str) -> list[str]:
        if not self.punctuation:
            return text.split()
        words: list[str] = []
        for chunk in text.split():
            parts = WORD_OR_MARK.findall(chunk)
            words.extend(parts if len(parts) == 1 else _marked(parts))
        return words

    def spelling(self, number: int) -> str:
        """A word with the space before it; punctuation keeps its marks."""
        word = self.units[number - RESERVED]
        return word if word == "\n" else f" {word}"

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        find = self.ids.get
        return [[find(word, UNK) for word in self.split(text)] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        words = [self.units[i - RESERVED] for i in ids if i >= RESERVED]
        text = join_words(words) if self.punctuation else " ".join(words)
        return re.sub(" ?\n ?", "\n", text) if self.line_ends else text


def join_words(words: Sequence[str]) -> str:
    """The text of words and punctuation marks as `WordTokenizer` splits them."""
    return " ".join(words).replace(f" {JOINED}", "").replace(f"{JOINED} ", "").replace(JOINED, "")


def _marked(parts: list[str]) -> list[str]:
    """Adjacent parts with marks on punctuation; between two punctuation marks, the second one carries the mark."""
    word = [part[0].isalnum() or part[0] == "_" or len(part) > 1 for part in parts]
    marked = []
    for index, part in enumerate(parts):
        if not word[index]:
            left = JOINED if index > 0 else ""
            right = JOINED if index + 1 < len(parts) and word[index + 1] else ""
            part = left + part + right
        marked.append(part)
    return marked


class CharacterTokenizer(_Counted):
    """One id per character (code point), so that decoding restores any text exactly.

    byte_fallback  encode a character outside the vocabulary as its UTF-8 bytes, which take 256 ids; otherwise as UNK
    """

    plural: ClassVar[str] = "characters"

    def __init__(self, *, byte_fallback: bool = True) -> None:
        self.byte_fallback = byte_fallback
        self._set([])

    @property
    def first(self) -> int:
        return RESERVED + BYTES if self.byte_fallback else RESERVED

    def split(self, text: str) -> str:
        return text

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> list[int]:
        ids = self.ids
        try:
            return [ids[character] for character in text]
        except KeyError:
            unseen = byte_ids if self.byte_fallback else lambda character: [UNK]
            known = ([ids[character]] if character in ids else unseen(character) for character in text)
            return list(chain.from_iterable(known))

    def decode(self, ids: Sequence[int]) -> str:
        first, units = self.first, self.units
        if all(i >= first or i < RESERVED for i in ids):
            return "".join(units[i - first] for i in ids if i >= first)
        raw = b"".join(units[i - first].encode() if i >= first else bytes([i - RESERVED]) for i in ids if i >= RESERVED)
        return raw.decode("utf-8", "replace")


class ByteTokenizer(Tokenizer):
    """One id per UTF-8 byte: 260 ids for any text, without training."""

    learns = False

    def train(self, texts: Iterable[str], size: int) -> None:
        """There is nothing to train; the size is fixed."""

    @property
    def size(self) -> int:
        return RESERVED + BYTES

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [byte_ids(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i - RESERVED for i in ids if i >= RESERVED).decode("utf-8", "replace")

    def piece(self, number: int) -> str:
        byte = number - RESERVED
        return chr(byte) if 0x20 <= byte < 0x7F else byte_name(byte)

    def dump(self) -> bytes:
        return b'{"tokenizer": "ByteTokenizer"}\n'

    def restore(self, content: bytes) -> None:
        if content != self.dump():
            raise ValueError(OTHER_TOKENIZER)
