"""Noise on training text: words are dropped, blanked out and shuffled, and their segmentation is drawn.

The noise of a batch follows from its key and its texts, so a resumed training reads what an uninterrupted one would have read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.data.batch import EOS
from weft.data.corpus import Corpus, Rows
from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.bpe_dropout import POOL, SampledSegmentations

SAMPLE = 500
"""Rows on which the growth of texts is measured."""

ROOM = 1.05
"""Batches leave this much more room than texts need on average."""

Words = list[str | None]
"""Words of a text; None for one that is blanked out."""


@dataclass(frozen=True)
class WordNoise:
    """Changes the words of texts (Lample et al. 2018): shuffles, then drops, then blanks out.

    drop, blank: the probability for each word · shuffle: the most places that a word moves. One word of a text always stays.
    """

    drop: float = 0.0
    blank: float = 0.0
    shuffle: int = 0

    def __call__(self, texts: Sequence[Sequence[str]], draw: np.random.Generator) -> list[Words]:
        flat = [word for words in texts for word in words]
        row = np.repeat(np.arange(len(texts)), [len(words) for words in texts])
        order, blanks = self.plan(row, draw)
        noisy: list[Words] = [[] for _ in texts]
        for word in order.tolist():
            noisy[row[word]].append(None if blanks[word] else flat[word])
        return noisy

    def plan(self, row: Rows, draw: np.random.Generator) -> tuple[Rows, NDArray[np.bool_]]:
        """The words that stay, in their new order, and whether each word is blanked out, given the text of each word."""
        move, keep, hide = draw.random((3, len(row)))
        # A word passes another only if that one is less than shuffle + 1 places ahead.
        order = np.lexsort((np.arange(len(row)) + move * (self.shuffle + 1), row))
        best = np.zeros(row.max(initial=-1) + 1)
        np.maximum.at(best, row, keep)
        stays = (keep >= self.drop) | (keep == best[row])
        return order[stays[order]], hide < self.blank


@dataclass(frozen=True)
class NoisyEncoder:
    """Turns texts into noisy token ids.

    words: noise on words, if any · variants: draws the segmentation of words, if it is drawn · blank: the id for a blank ·
    before: ids at the beginning of each text, which stay.
    """

    tokenizer: Tokenizer
    words: WordNoise | None = None
    variants: SampledSegmentations | None = None
    blank: int = 0
    before: Sequence[int] = ()

    def __call__(self, texts: Sequence[str], draw: np.random.Generator) -> list[list[int]]:
        """The ids of each text, with EOS."""
        split = [text.removeprefix(" ").split(" ") for text in texts]
        changed: Sequence[Sequence[str | None]] = split if self.words is None else self.words(split, draw)
        read = self._read if self.variants is None else self._segment
        return [[*self.before, *ids, EOS] for ids in read(changed, draw)]

    @cached_property
    def starts(self) -> NDArray[np.bool_] | None:
        """Whether each id begins a word; None if noise needs texts."""
        return self.tokenizer.starts() if self.words is not None and self.variants is None else None

    def on_ids(self, ids: NDArray[Any], lengths: Rows, draw: np.random.Generator) -> tuple[NDArray[Any], Rows]:
        """The same noise on the ids of all texts, one after the other, much faster; and how many each text has then."""
        assert self.words is not None and self.starts is not None
        row = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(len(ids)) - (lengths.cumsum() - lengths)[row]
        tags, ends = place < len(self.before), place == lengths[row] - 1
        inside = ~tags & ~ends
        first = inside & (self.starts[ids] | (place == len(self.before)))
        if not first.any():
            return ids, lengths
        word = first.cumsum() - 1
        order, blanks = self.words.plan(row[first], draw)
        rank = np.full(len(blanks), -1)
        rank[order] = np.arange(len(order))
        blank = inside & blanks[word]
        kept = np.flatnonzero(~inside | ((rank[word] >= 0) & (first | ~blank)))
        keys = place, np.where(inside, rank[word], 0), np.where(ends, 2, inside), row
        kept = kept[np.lexsort([key[kept] for key in keys])]
        return np.where(blank, self.blank, ids).astype(ids.dtype)[kept], np.bincount(row[kept], minlength=len(lengths))

    def _read(self, texts: Sequence[Sequence[str | None]], draw: np.random.Generator) -> list[list[int]]:
        """Encodes the words between blanks together, as a tokenizer may not encode words one by one."""
        runs = [[list(run) for _, run in groupby(words, key=lambda word: word is None)] for words in texts]
        lines = [" ".join(word for word in run if word is not None) for text in runs for run in text if run[0] is not None]
        encoded = iter(self.tokenizer.encode_batch(lines))
        return [
            [token for run in text for token in ([self.blank] * len(run) if run[0] is None else next(encoded))] for text in runs
        ]

    def _segment(self, texts: Sequence[Sequence[str | None]], draw: np.random.Generator) -> list[list[int]]:
        assert self.variants is not None
        numbers = iter(draw.integers(0, POOL, sum(map(len, texts))).tolist())
        find, blank = self.variants, (self.blank,)
        return [
            [token for word in words for token in (blank if word is None else find(word, next(numbers)))] for words in texts
        ]


@dataclass(frozen=True)
class CorpusNoise:
    """The noise of one corpus, by column. A row whose noisy text has more than `most` tokens stays as it is.

    The corpus keeps the text of a noisy column in another one, see `text_of`.
    """

    columns: Mapping[str, NoisyEncoder]
    most: int

    def changes(self, name: str) -> bool:
        return name in self.columns

    def __call__(
        self, corpus: Corpus, name: str, rows: Rows, plain: NDArray[Any], lengths: Rows, draw: np.random.Generator
    ) -> tuple[NDArray[Any], Rows]:
        """Noisy entries of a column and their number per row, given the plain ones."""
        if self.columns[name].starts is not None:  # noise on words makes no text longer
            return self.columns[name].on_ids(plain, lengths, draw)
        noisy = self.columns[name](_texts(corpus, name, rows), draw)
        ends = lengths.cumsum()
        rows_of_ids = [
            ids if len(ids) <= self.most else plain[end - length : end].tolist()
            for ids, end, length in zip(noisy, ends.tolist(), lengths.tolist(), strict=True)
        ]
        counts = np.array([len(ids) for ids in rows_of_ids])
        return np.fromiter((token for ids in rows_of_ids for token in ids), plain.dtype, int(counts.sum())), counts

    def growth(self, corpus: Corpus) -> float:
        """The factor by which noise makes the rows of a corpus longer, with some room, measured on a few rows; 1 if not."""
        if all(encoder.variants is None for encoder in self.columns.values()):
            return 1.0
        rows = np.unique(np.linspace(0, len(corpus) - 1, SAMPLE).astype(np.int64))
        grown = []
        for name in self.columns:
            plain, lengths = corpus.gather(name, rows)
            noisy, _ = self(corpus, name, rows, plain, lengths, np.random.default_rng(0))
            grown.append(len(noisy) / len(plain))
        return max(1.0, ROOM * max(grown))


def text_of(column: str) -> str:
    """The column that keeps the text of another, as UTF-8."""
    return f"{column}_text"


def _texts(corpus: Corpus, name: str, rows: Rows) -> list[str]:
    raw, lengths = corpus.gather(text_of(name), rows)
    content, ends = raw.tobytes(), [0, *lengths.cumsum().tolist()]
    return [content[begin:end].decode() for begin, end in pairwise(ends)]
