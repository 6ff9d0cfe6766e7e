"""Tagged sentences as a corpus and as batches.

Columns: `word`, the id of each word; `piece`, the ids of the pieces of all words; `size`, the pieces of each word; `tag`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.batch import NO_LABEL, UNK, Layout, Source, TagBatch
from weft.data.batching import lay_out, spread
from weft.data.corpus import Columns, Corpus, Rows, ids_below, prepare
from weft.data.formats import Pairs, Texts
from weft.data.labels import Labels
from weft.data.lexicon import Lexicon
from weft.data.pairs import PairFilters
from weft.data.tagged import split_tags
from weft.data.tokenizer import Tokenizer

MOST_PIECES = 24
"""Pieces of a word that a front reads. Of longer words, the middle is left out."""


@dataclass(frozen=True)
class Reading:
    """How sentences become ids. whole: a model reads words, each with its pieces; otherwise it reads all pieces in a row."""

    tokenizer: Tokenizer
    lexicon: Lexicon
    whole: bool

    def pieces(self, words: Sequence[str]) -> list[list[int]]:
        """The pieces of each word; at least one."""
        return [self._shorten(ids) or [UNK] for ids in self.tokenizer.encode_batch(words)]

    def _shorten(self, ids: list[int]) -> list[int]:
        half = MOST_PIECES // 2
        return ids if not self.whole or len(ids) <= MOST_PIECES else [*ids[:half], *ids[-half:]]

    def length(self, pieces: Sequence[Sequence[int]]) -> int:
        """The number of positions that words with these pieces take in a source."""
        return len(pieces) if self.whole else sum(map(len, pieces))

    def key(self) -> list[Any]:
        """Identifies everything that the ids depend on."""
        return [self.tokenizer.digest(), list(self.lexicon.ids), self.lexicon.vocabulary.lowercase, self.whole, MOST_PIECES]


def prepare_tagged(
    pairs: Sequence[Pairs],
    reading: Reading,
    labels: Labels,
    change: Callable[[Sequence[str]], list[str]],
    *,
    key: str,
    folder: Path,
    max_length: int,
    drop_duplicates: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """The corpus of tagged sentences, from the cache in `folder` or encoded now.

    change: turns the tags of a sentence into those of `labels`; `key` names it. Left out are sentences that are too long, and
    those with a tag that is not among the labels.
    """
    filters = PairFilters(max_length, None, drop_duplicates)

    def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
        sentences = [split_tags(text) for _, text in texts]
        known = [(text, each) for text, each in zip(texts, sentences, strict=True) if labels.ids.keys() >= set(change(each[1]))]
        made: list[tuple[list[str], list[str], list[list[int]]]] = []
        for _, (words, tags) in known:
            made.append((words, change(tags), reading.pieces(words)))
        sizes = [range(reading.length(pieces)) for _, _, pieces in made]
        kept, reasons = filters([text for text, _ in known], sizes)
        chosen = [made[place] for place in kept]
        columns: Columns = {
            "word": [reading.lexicon.find(words) for words, _, _ in chosen],
            "piece": [[piece for each in pieces for piece in each] for _, _, pieces in chosen],
            "size": [[len(each) for each in pieces] for _, _, pieces in chosen],
            "tag": [[labels.ids[tag] for tag in tags] for _, tags, _ in chosen],
        }
        return columns, {"with a tag that training does not have": len(texts) - len(known), **reasons}

    return prepare(
        pairs,
        ["tagged", reading.key(), labels.names, key, max_length, drop_duplicates],
        encode,
        {
            "word": ids_below(reading.lexicon.size),
            "piece": ids_below(reading.tokenizer.size),
            "size": "uint16",
            "tag": ids_below(len(labels)),
        },
        sized=["word" if reading.whole else "piece"],
        folder=folder,
        unit="sentences",
        progress=progress,
    )


def collate_tagged(corpus: Corpus, rows: Rows, *, whole: bool, budget: int = 0, rounded: bool = False) -> TagBatch:
    """The sentences of some rows as a batch, laid out as `lay_out` does."""
    rows = np.asarray(rows, dtype=np.int64)
    (words, lengths), (pieces, _), (sizes, _), (tags, _) = (
        corpus.gather(name, rows) for name in ("word", "piece", "size", "tag")
    )
    sizes = sizes.astype(np.int64)
    return make_tagged(words, pieces, sizes, tags, lengths, rows, whole=whole, budget=budget, rounded=rounded)


def make_tagged(
    words: NDArray[Any],
    pieces: NDArray[Any],
    sizes: Rows,
    tags: NDArray[Any],
    lengths: Rows,
    rows: Rows | None = None,
    *,
    whole: bool,
    budget: int = 0,
    rounded: bool = False,
) -> TagBatch:
    """A batch of sentences, given all their words, the pieces of all words, the pieces per word, all tags, and the words per
    sentence [n]."""
    starts: torch.Tensor | None = None
    ends = sizes.cumsum()
    if whole:
        (layout,) = lay_out(lengths[:, None], budget=budget, rounded=rounded)
        source = Source(spread(_table(words, pieces, sizes, rounded), layout), layout)
    else:
        last = lengths.cumsum() - 1
        before = np.concatenate([[0], ends[last][:-1]])
        long, layout = lay_out(np.stack([ends[last] - before, lengths], 1), budget=budget, rounded=rounded)
        source = Source(spread(pieces, long), long)
        starts = spread(ends - sizes - np.repeat(before, lengths), layout)
    labels = _on_words(spread(tags, layout), layout)
    numbers = torch.arange(len(lengths)) if rows is None else torch.from_numpy(rows)
    return TagBatch(numbers, source, layout, starts, labels)


def _table(words: NDArray[Any], pieces: NDArray[Any], sizes: Rows, rounded: bool) -> NDArray[np.int64]:
    """[N, 1 + P]: each word and its pieces. Rounded batches have as many columns as there can be."""
    most = MOST_PIECES if rounded else int(sizes.max())
    table = np.zeros((len(words), 1 + most), np.int64)
    table[:, 0] = words
    table[:, 1:][np.arange(most) < sizes[:, None]] = pieces
    return table


def _on_words(tags: torch.Tensor, layout: Layout) -> torch.Tensor:
    return tags.where(layout.ok, NO_LABEL)
