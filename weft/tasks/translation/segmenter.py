"""Cuts lines that are too long for a model between words.

Reads lines as pieces that a model can translate: sentences, and parts of sentences that are too long.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from weft.data.batch import EOS
from weft.data.copy_vocabulary import CopyIds
from weft.data.sentence_splitting import Sentence, SentenceSplitter, split
from weft.data.tokenizers.base import Tokenizer
from weft.errors import DataError
from weft.inference.predictor import BatchItem
from weft.tasks.translation.glossary import NO_TERMS, Terms

Encodes = Tokenizer | CopyIds


def split_long(line: str, tokenizer: Encodes, room: int) -> list[list[int]]:
    """The ids of a line in parts of at most `room` ids, cut between words where possible."""
    words = [part for word in line.split() for part in _fit(word, tokenizer, room)]
    sizes = [len(ids) for ids in tokenizer.encode_batch(words)]
    # In some vocabularies a space is a separate token.
    space = -(-(len(tokenizer.encode(" ".join(words))) - sum(sizes)) // max(1, len(words) - 1))
    parts: list[list[str]] = []
    filled = room
    for word, size in zip(words, sizes, strict=True):
        filled += max(0, space) + size
        if filled > room:
            parts.append([])
            filled = size
        parts[-1].append(word)
    return [ids for part in parts for ids in _checked(part, tokenizer, room)]


def _checked(words: list[str], tokenizer: Encodes, room: int) -> list[list[int]]:
    """The ids of some words; in halves if they are too many, since a word may have more tokens in context than alone."""
    ids = tokenizer.encode(" ".join(words))
    if len(ids) <= room or len(words) < 2:
        return [ids[start : start + room] for start in range(0, len(ids), max(1, room))]
    middle = len(words) // 2
    return _checked(words[:middle], tokenizer, room) + _checked(words[middle:], tokenizer, room)


def _fit(word: str, tokenizer: Encodes, room: int) -> list[str]:
    """A word, halved until its parts fit."""
    if len(word) < 2 or len(tokenizer.encode(word)) <= room:
        return [word]
    middle = len(word) // 2
    return _fit(word[:middle], tokenizer, room) + _fit(word[middle:], tokenizer, room)


@dataclass(eq=False)
class TextSegment(BatchItem):
    """A line, a sentence of it, or a part of a sentence that is too long. Its ids end with EOS.

    prefix: ids of the forced prefix · words: unknown words of the source, if the model can copy them; the first has the first
    id beyond the vocabulary, and so on · text: the text of the ids · gap: the white space before it in its line · masked:
    whether protected parts are left out of the text.
    """

    prefix: list[int]
    words: list[str] = field(default_factory=list)
    terms: Terms = NO_TERMS
    text: str = ""
    gap: str = ""
    masked: bool = False

    @property
    def seed(self) -> int:
        """Names the sentence to sampling. It depends only on what is read, not on the batch."""
        content = array("q", [len(self.ids), *self.ids, *self.prefix]).tobytes()
        return int.from_bytes(blake2b(content, digest_size=8).digest(), "little") >> 1


class Segmenter:
    """Turns lines into pieces.

    room: the most source tokens of a piece, without EOS · most: the target positions of the model, if they are limited ·
    copies: whether the model can copy unknown words · split: splits lines into sentences; None: lines are not split · tags: ids
    that begin each piece.
    """

    def __init__(
        self,
        source: Tokenizer,
        target: Tokenizer,
        *,
        room: int,
        most: int | None,
        copies: bool,
        split: SentenceSplitter | None,
        warn: Callable[[str], None],
        tags: Sequence[int] = (),
    ) -> None:
        self.source, self.target, self.room, self.most = source, target, max(1, room - len(tags)), most
        self.tags = tags
        self.copies, self.split, self.warn = copies, split, warn

    def __call__(
        self, lines: Sequence[str], prefixes: Sequence[str], numbers: Sequence[int], *, whole: bool = False
    ) -> list[list[TextSegment]]:
        """The pieces of each line: none if it is blank. Messages call a line by its number. Each piece begins with the tags.

        whole: do not split lines into sentences.
        """
        starts = self.target.encode_batch(list(prefixes)) if any(prefixes) else [[] for _ in prefixes]
        sentences = [
            [] if not line or line.isspace() else [Sentence(line)] if whole else self.sentences(line, prefix)
            for line, prefix in zip(lines, prefixes, strict=True)
        ]
        encoded = iter(self.source.encode_batch([each.text for group in sentences for each in group]))
        groups: list[list[TextSegment]] = []
        for number, group, prefix, start in zip(numbers, sentences, prefixes, starts, strict=True):
            if self.most is not None and len(start) + 1 >= self.most:
                raise DataError(
                    f"line {number}: its prefix has {len(start):,} tokens, and the model has {self.most:,} positions"
                )
            pieces: list[TextSegment] = []
            for each in group:
                ids = next(encoded)
                found = self._pieces(each, ids, [] if pieces else start, "" if pieces else prefix)
                if len(ids) > self.room:
                    where = f"line {number}" if len(group) == 1 else f"line {number}: a sentence"
                    count = f"{len(ids):,} tokens, more than {self.room:,}"
                    self.warn(f"{where} has {count}: translated in {len(found)} parts")
                pieces += found
            groups.append(pieces)
        return groups

    def sentences(self, line: str, prefix: str = "") -> list[Sentence]:
        """The sentences of a line. As many as the prefix has form the first one, which the prefix begins."""
        if self.split is None:
            return [Sentence(line)]
        return self.split(line, whole=len(split(prefix)) if prefix else 1)

    def _pieces(self, sentence: Sentence, ids: list[int], start: list[int], prefix: str) -> list[TextSegment]:
        """The pieces of a sentence: usually one, several if it is too long. `start` are the ids of its prefix."""
        numbering = CopyIds(self.source) if self.copies else None
        parts = [ids if numbering is None else numbering.number(sentence.text, ids)] if ids else []
        if len(ids) > self.room:
            parts = split_long(sentence.text, numbering or self.source, self.room)
        pieces = [TextSegment([*part, EOS], [] if k else start, text=sentence.text) for k, part in enumerate(parts)]
        if numbering is not None:
            pieces = [self._copying(piece, numbering, prefix) for piece in pieces]
        for k, piece in enumerate(pieces):
            piece.gap = " " if k else sentence.gap
            if len(pieces) > 1:
                piece.text = self.source.named(piece.words).decode(piece.ids[:-1])
            piece.ids[:0] = self.tags
        return pieces

    def _copying(self, piece: TextSegment, numbering: CopyIds, start: str) -> TextSegment:
        """The piece with ids for its own unknown words, which the prefix `start` may use too."""
        ids, words = numbering.alone(piece.ids)
        return TextSegment(ids, CopyIds(self.target, words).find(start, piece.prefix), words, text=piece.text)
