"""Temporary ids for words outside the vocabulary that a model may copy. They are valid within one pair.

The unknown words of a source get the ids size, size + 1, … in order of first occurrence. The same words have the same ids in
the target; other unknown words there stay UNK.
"""

from collections.abc import Sequence

from weft.data.batch import EOS, UNK
from weft.data.tokenizers import Tokenizer


class CopyIds:
    """The temporary ids of one source. It encodes like its tokenizer and assigns an id to each new unknown word."""

    def __init__(self, tokenizer: Tokenizer, words: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.ids = {word: number for number, word in enumerate(words, start=tokenizer.size)}

    @property
    def words(self) -> list[str]:
        return list(self.ids)

    def encode(self, text: str) -> list[int]:
        return self.number(text, self.tokenizer.encode(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.number(text, ids) for text, ids in zip(texts, self.tokenizer.encode_batch(texts), strict=True)]

    def number(self, text: str, ids: list[int]) -> list[int]:
        """The ids of a source, with a temporary id for each unknown word."""
        if UNK in ids:
            for word in self.tokenizer.unknown(text):
                self.ids.setdefault(word, self.tokenizer.size + len(self.ids))
        return self.find(text, ids)

    def find(self, text: str, ids: list[int]) -> list[int]:
        """The ids of a target, with the temporary ids of words that have one; other unknown words stay UNK."""
        if UNK not in ids or not self.ids:
            return ids
        unknown = iter(self.tokenizer.unknown(text))
        return [self.ids.get(next(unknown), UNK) if token == UNK else token for token in ids]

    def alone(self, ids: list[int]) -> tuple[list[int], list[str]]:
        """A part of the source with temporary ids as if it were a whole source, and its unknown words."""
        size, words = self.tokenizer.size, self.words
        again: dict[int, int] = {}
        part = [token if token < size else again.setdefault(token, size + len(again)) for token in ids]
        return part, [words[token - size] for token in again]


def number_pairs(
    tokenizer: Tokenizer, texts: Sequence[tuple[str, str]], sources: list[list[int]], targets: list[list[int]]
) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of pairs with temporary ids for unknown words. Both sides share one vocabulary."""
    numbered: tuple[list[list[int]], list[list[int]]] = ([], [])
    for (source, target), read, written in zip(texts, sources, targets, strict=True):
        numbering = CopyIds(tokenizer)
        numbered[0].append(numbering.number(source, read))
        numbered[1].append(numbering.find(target, written))
    return numbered


def encode_named(tokenizer: Tokenizer, text: str, words: Sequence[str] = ()) -> tuple[Tokenizer, list[int]]:
    """Encodes a text, including EOS. Returns a tokenizer that also names words outside the vocabulary, and the ids."""
    numbering = CopyIds(tokenizer, words)
    ids = [*numbering.encode(text), EOS]
    return tokenizer.named(numbering.words), ids
