"""Documents as token ids, sentence by sentence.

A text with line breaks has one sentence per line; a document with a list of sentences is read as such a text. Any other text is
split into sentences by `weft.data.sentences`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise

from weft.batch import Layout, Source
from weft.data.batching import spread
from weft.data.corpus import Rows
from weft.data.sentences import split
from weft.data.tokenizer import Tokenizer

Document = tuple[list[int], list[int]]
"""The ids of all sentences one after the other, and the number of ids of each sentence."""


def sentences_of(text: str, language: str | None = None) -> list[str]:
    """The sentences of a text (see the top of this file) without the blank ones."""
    found = text.split("\n") if "\n" in text else split(text, language or "")
    return [sentence.strip() for sentence in found if sentence.strip()]


def encode_documents(texts: Sequence[str], tokenizer: Tokenizer, language: str | None = None) -> list[Document]:
    """The ids of each text. A sentence without any is left out."""
    sentences = [sentences_of(text, language) for text in texts]
    ids = iter(tokenizer.encode_batch(list(chain.from_iterable(sentences))))
    found = [[each for each in (next(ids) for _ in some) if each] for some in sentences]
    return [(list(chain.from_iterable(some)), [len(each) for each in some]) for some in found]


def cut_document(document: Document, longest: int) -> Document:
    """The first `longest` ids of a document; the sentence at the end may be cut."""
    ids, sizes = document
    ends = [0, *(min(end, longest) for end in accumulate(sizes))]
    return ids[:longest], [end - start for start, end in pairwise(ends) if end > start]


def document_source(ids: Rows, sizes: Rows, counts: Sequence[int] | Rows) -> Source:
    """Documents as the source of a model: all ids, the number of ids per sentence, and of sentences per document."""
    words = Layout.padded(sizes)
    return Source(spread(ids, words), words, Layout.padded(counts))
