"""Documents as token ids, sentence by sentence.

A text with line breaks has one sentence per line; a document with a list of sentences is read as such a text. Any other text is
split into sentences by `weft.data.sentences`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from weft.batch import EOS, Layout, Source
from weft.data.batching import spread
from weft.data.corpus import Rows
from weft.data.pair_source import Pairs, combine
from weft.data.sentences import split
from weft.data.tokenizer import Tokenizer

Document = tuple[list[int], list[int]]
"""The ids of all sentences one after the other, and the number of ids of each sentence."""


def sentences_of(text: str, language: str | None = None) -> list[str]:
    """The sentences of a text (see the top of this file) without the blank ones."""
    found = text.split("\n") if "\n" in text else split(text, language or "")
    return [sentence.strip() for sentence in found if sentence.strip()]


def whole(text: str) -> str:
    """The text of a list of sentences, which ends in a line break, with spaces between them; any other text as it is."""
    return " ".join(text.split("\n")).strip() if text.endswith("\n") else text


class WholeTexts(Pairs):
    """Pairs whose sources are `whole`, to train a tokenizer on: line breaks between sentences are no part of words."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__(pairs.name)
        self.pairs = pairs

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((whole(source), target) for source, target in self.pairs)

    def digest(self) -> str:
        return combine("whole", self.pairs.digest())


@dataclass(frozen=True)
class TextReader:
    """Turns texts into token ids, as a whole with EOS at the end, or sentence by sentence.

    longest: the most tokens of a text that are read · by_sentence: read sentences, those of this language.
    """

    tokenizer: Tokenizer
    longest: int
    by_sentence: bool = False
    language: str | None = None

    def encode(self, texts: Sequence[str]) -> list[Document]:
        """The ids of each text. Sentences without any are left out."""
        if not self.by_sentence:
            return [(ids, [len(ids)]) for ids in self.tokenizer.encode_batch([whole(text) for text in texts])]
        sentences = [sentences_of(text, self.language) for text in texts]
        ids = iter(self.tokenizer.encode_batch(list(chain.from_iterable(sentences))))
        found = [[each for each in (next(ids) for _ in some) if each] for some in sentences]
        return [(list(chain.from_iterable(some)), [len(each) for each in some]) for some in found]

    def cut(self, document: Document) -> Document:
        """The first `longest` ids of a text, as the model reads them; its last sentence may be cut. Nothing if it is empty."""
        ids, sizes = document
        if not self.by_sentence:
            return ([*ids[: self.longest], EOS] if ids else []), []
        ends = [0, *(min(end, self.longest) for end in accumulate(sizes))]
        return ids[: self.longest], [end - start for start, end in pairwise(ends) if end > start]


def document_source(ids: Rows, sizes: Rows, counts: Sequence[int] | Rows) -> Source:
    """Documents as the source of a model: all ids, the number of ids per sentence, and of sentences per document."""
    words = Layout.padded(sizes)
    return Source(spread(ids, words), words, Layout.padded(counts))
