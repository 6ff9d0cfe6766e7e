"""Texts of two languages without translations: one corpus of both, and batches of texts to restore from several sources.

Shapes: B texts · T tokens of a text with the mark of its language · S tokens of a source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.batch import EOS, PAD, PairBatch, Source
from weft.data.batching import lay_out, spread
from weft.data.corpus import Columns, Corpus, Rows, ids_below, prepare
from weft.data.formats import Pairs, Texts
from weft.data.noise import Noising, text_of
from weft.data.pairs import PairFilters, make_pairs
from weft.data.tokenizer import Tokenizer

TOKENS, WORDS, LANGUAGE = "tokens", "words", "language"

FOREIGN = 10.0
"""A token belongs to the other language if it is this many times as frequent there."""

Translate = Callable[[str, str], str]
"""A text and its language to a first translation into the other language."""


@dataclass(frozen=True)
class UnpairedBatch(PairBatch):
    """Texts of either language. Targets begin with BOS and the mark of the language; nobody has to predict the mark.

    source: the texts with noise · clean: the texts as they are · words: their translations word by word, with noise · other:
    [B] the mark of the language that a text is not in.
    """

    clean: Source
    words: Source
    other: Tensor


def prepare_unpaired(
    texts: Sequence[Pairs],
    tokenizer: Tokenizer,
    languages: Sequence[str],
    translators: Callable[[], Translate],
    *,
    key: Any,
    folder: Path,
    max_length: int,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """The corpus of texts, pairs of a line and its language; texts of more than `max_length` tokens are left out.

    Columns: the tokens of each text, those of its translation word by word, both also as text, and the number of its language.
    translators: makes what translates word by word, when texts are encoded · key: identifies it.
    """
    filters, translate = PairFilters(max_length), cache(translators)

    def encode(pairs: Texts) -> tuple[Columns, dict[str, int]]:
        sides = [text for text, _ in pairs], [translate()(*pair) for pair in pairs]
        ids = [tokenizer.encode_batch(side) for side in sides]
        kept, reasons = filters(pairs, *ids)
        columns: Columns = {LANGUAGE: [[languages.index(pairs[row][1])] for row in kept]}
        for name, side, tokens in zip((TOKENS, WORDS), sides, ids, strict=True):
            columns[name] = [[*tokens[row], EOS] for row in kept]
            columns[text_of(name)] = [np.frombuffer(side[row].encode(), np.uint8) for row in kept]
        return columns, reasons

    kind = ids_below(tokenizer.size)
    columns = {TOKENS: kind, WORDS: kind, text_of(TOKENS): "uint8", text_of(WORDS): "uint8", LANGUAGE: "uint8"}
    whole = ["unpaired", tokenizer.digest(), list(languages), max_length, key]
    return prepare(texts, whole, encode, columns, sized=[TOKENS, WORDS], folder=folder, unit="texts", progress=progress)


def collate_unpaired(
    corpus: Corpus, rows: Rows, noising: Noising, marks: Sequence[int], draw: np.random.Generator
) -> UnpairedBatch:
    """The batch of some rows. marks: the ids of the languages · draw: from which the noise follows."""
    plain, lengths = corpus.gather(TOKENS, rows)
    noisy, sources = noising(corpus, TOKENS, rows, plain, lengths, draw)
    words, counts = noising(corpus, WORDS, rows, *corpus.gather(WORDS, rows), draw)
    numbers, known = corpus.gather(LANGUAGE, rows)[0].astype(np.int64), np.asarray(marks)
    labels = np.insert(plain.astype(np.int64), lengths.cumsum() - lengths, known[numbers])
    pairs = make_pairs(noisy.astype(np.int64), labels, np.stack([sources, lengths + 1], 1), rows)
    hidden = torch.isin(pairs.labels, torch.from_numpy(known))
    return UnpairedBatch(
        pairs.rows,
        pairs.source,
        pairs.target,
        pairs.target_layout,
        pairs.labels.masked_fill(hidden, PAD),
        _source(plain, lengths),
        _source(words, counts),
        torch.from_numpy(known[1 - numbers]),
    )


def foreign_tokens(corpus: Corpus, size: int) -> NDArray[np.bool_]:
    """[2, size]: the tokens that are at least `FOREIGN` times as frequent in the other language as in this one."""
    rows = np.arange(len(corpus))
    tokens, lengths = corpus.gather(TOKENS, rows)
    languages = np.repeat(corpus.gather(LANGUAGE, rows)[0], lengths)
    counts = np.stack([np.bincount(tokens[languages == language], minlength=size) for language in (0, 1)])
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    foreign: NDArray[np.bool_] = (shares[::-1] >= FOREIGN * shares) & (shares[::-1] > 0)
    foreign[:, : EOS + 1] = False
    return foreign


def _source(tokens: NDArray[Any], lengths: Rows) -> Source:
    (layout,) = lay_out(lengths[:, None])
    return Source(spread(tokens.astype(np.int64), layout), layout)
