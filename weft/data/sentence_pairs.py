"""Pairs of texts as a corpus and as batches: columns `source` and `target`, both with EOS at the end."""

import hashlib
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.batch import BOS, EOS, PairBatch, Source
from weft.data.batching import lay_out, spread
from weft.data.copy_vocabulary import number_pairs
from weft.data.corpus import Columns, Corpus, Encoding, Processes, Rows, ids_below
from weft.data.corpus_files import HASHES, SEEN
from weft.data.formats import Pairs, Texts
from weft.data.tokenizers import RESERVED, Tokenizer
from weft.data.word_noise import text_of

SIDES = ("source", "target")
"""The columns of a corpus of pairs."""


def prepare_pairs(
    pairs: Sequence[Pairs],
    source: Tokenizer,
    target: Tokenizer,
    *,
    folder: Path,
    max_length: int,
    max_ratio: float | None = None,
    drop_duplicates: bool = False,
    copying: bool = False,
    tags: Sequence[int] = (),
    begin: Sequence[int] = (),
    texts: Sequence[str] = (),
    processes: Processes = "auto",
    progress: Callable[[int], None] = lambda read: None,
) -> Corpus:
    """The corpus of `pairs`, from the cache in `folder` if it is there, otherwise tokenised now.

    Left out are pairs with a side that is empty or longer than `max_length` tokens, pairs whose lengths differ by more than
    the factor `max_ratio`, and (with `drop_duplicates`) pairs that occurred before. With `copying`, unknown words of a source
    have ids of their own (see `weft.data.copy_vocabulary`). `tags` are ids that begin each source, `begin` ids that
    begin each target. The columns in `texts` are kept as text too, for noise (see `weft.data.word_noise`).
    """
    filters = PairFilters(max_length, max_ratio, drop_duplicates)

    def encode(pairs: Texts) -> tuple[Columns, dict[str, int]]:
        sides = source.encode_batch([text for text, _ in pairs]), target.encode_batch([text for _, text in pairs])
        sources, targets = number_pairs(source, pairs, *sides) if copying else sides
        kept, reasons = filters(pairs, sources, targets)
        columns: Columns = {
            "source": [[*tags, *sources[i], EOS] for i in kept],
            "target": [[*begin, *targets[i], EOS] for i in kept],
            **filters.hashes(pairs, kept),
        }
        for name in texts:
            columns[text_of(name)] = [pairs[i][SIDES.index(name)].encode() for i in kept]
        return columns, reasons

    ids = ids_below(max(source.size, target.size) + (max_length if copying else 0))
    key = ["pairs", source.digest(), target.digest(), max_length, max_ratio, drop_duplicates, copying]
    key += [list(some) for some in (tags, begin) if some]
    columns = {"source": ids, "target": ids, **{text_of(name): "uint8" for name in texts}}
    return Encoding(key, encode, columns, ["source", "target"]).prepare(
        pairs, folder=folder, processes=processes, progress=progress
    )


class PairFilters:
    """Decides which pairs of texts are kept, and counts the reasons for leaving out the others.

    drop_duplicates: keep only the first of equal pairs, by the column `hashes`.
    """

    def __init__(self, max_length: int, max_ratio: float | None = None, drop_duplicates: bool = False) -> None:
        self.max_length, self.max_ratio, self.drop_duplicates = max_length, max_ratio, drop_duplicates

    def __call__(self, texts: Texts, *sides: Sequence[Sized]) -> tuple[list[int], dict[str, int]]:
        """The places of those pairs of a chunk that are kept; `sides` are their token ids or frames."""
        n = len(texts)
        sizes = np.array([np.fromiter(map(len, side), np.int64, n) for side in sides])
        blank = np.fromiter((not (pair[0].strip() and pair[1].strip()) for pair in texts), bool, n)
        short, long = sizes.min(0), sizes.max(0)
        empty = blank | (short == 0)
        too_long = ~empty & (long > self.max_length)
        uneven = ~empty & ~too_long & (long > short * (self.max_ratio or self.max_length))
        left = np.flatnonzero(~(empty | too_long | uneven))
        reasons = {
            "with an empty side": int(empty.sum()),
            "too long": int(too_long.sum()),
            "with lengths too different": int(uneven.sum()),
            SEEN: 0,
        }
        return left.tolist(), reasons

    def hashes(self, texts: Texts, kept: Sequence[int]) -> dict[str, NDArray[np.uint64]]:
        """A column by which the corpus drops duplicates; none if it should not."""
        if not self.drop_duplicates:
            return {}
        digests = (hashlib.blake2b("\0".join(texts[i]).encode(), digest_size=8).digest() for i in kept)
        return {HASHES: np.frombuffer(b"".join(digests), np.uint64)}


def collate_pairs(corpus: Corpus, rows: Rows, *, packed: bool = False, budget: int = 0, rounded: bool = False) -> PairBatch:
    """The pairs of some rows as a batch, laid out as `lay_out` does."""
    rows = np.asarray(rows, dtype=np.int64)
    (source, sources), (target, targets) = corpus.gather("source", rows), corpus.gather("target", rows)
    lengths = np.stack([sources, targets], 1)
    return make_pairs(source, target, lengths, rows, packed=packed, budget=budget, rounded=rounded)


def make_pairs(
    source: NDArray[Any],
    labels: NDArray[np.integer],
    lengths: Rows,
    rows: Rows | None = None,
    *,
    packed: bool = False,
    budget: int = 0,
    rounded: bool = False,
) -> PairBatch:
    """A batch of pairs, given all source tokens or frames, all labels, and the lengths [n, 2] of both sides."""
    target = np.roll(labels, 1)
    target[lengths[:, 1].cumsum() - lengths[:, 1]] = BOS
    above, below = lay_out(lengths, packed=packed, budget=budget, rounded=rounded)
    numbers = torch.arange(len(lengths)) if rows is None else torch.from_numpy(rows)
    return PairBatch(numbers, Source(spread(source, above), above), spread(target, below), below, spread(labels, below))


def random_pairs(
    sizes: tuple[int, int], lengths: tuple[int, int], rows: int = 1, *, packed: bool = False, rounded: bool = False
) -> PairBatch:
    """Random pairs of the given lengths over vocabularies of the given sizes, the same at every call."""
    draw = np.random.default_rng(lengths)
    source, target = (
        draw.integers(RESERVED, max(RESERVED + 1, size), rows * length) for size, length in zip(sizes, lengths, strict=True)
    )
    counts = np.tile(np.array(lengths), (rows, 1))
    return make_pairs(source, target, counts, packed=packed, budget=rows * max(lengths), rounded=rounded)
