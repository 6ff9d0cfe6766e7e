"""Pictures with captions, as a corpus and as batches.

A picture may have several lines, one per caption. The corpus of captions has the columns `target`, with EOS at the end, and
`picture`, the row of its picture in another corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from weft.batch import BOS, EOS, PairBatch, Source
from weft.data.batching import lay_out, spread
from weft.data.corpus import Columns, Corpus, Rows, ids_below, prepare
from weft.data.pair_source import Pairs, Texts
from weft.data.pairs import PairFilters
from weft.data.pictures import Pictures, Pixels, augment
from weft.data.tokenizer import Tokenizer


def pictures_of(pairs: Sequence[Pairs]) -> Pictures:
    """The pictures that captions are about."""
    return Pictures([path for path, _ in chain.from_iterable(pairs)], ", ".join(some.name for some in pairs))


def by_picture(pairs: Sequence[Pairs]) -> list[tuple[str, str]]:
    """Each picture once, with all its captions as the lines of one text."""
    found: dict[str, list[str]] = {}
    for path, caption in chain.from_iterable(pairs):
        if caption.strip():
            found.setdefault(path, []).append(caption)
    return [(path, "\n".join(captions)) for path, captions in found.items()]


def prepare_captions(
    pairs: Sequence[Pairs],
    places: dict[str, int],
    tokenizer: Tokenizer,
    *,
    folder: Path,
    max_length: int,
    drop_duplicates: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """The corpus of captions, from the cache in `folder` if it is there, otherwise tokenised now.

    places: the row of each picture. Left out are captions that are empty or longer than `max_length` tokens, and (with
    `drop_duplicates`) those that occurred before with the same picture.
    """
    filters = PairFilters(max_length, None, drop_duplicates)

    def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
        targets = tokenizer.encode_batch([caption for _, caption in texts])
        kept, reasons = filters(texts, targets)
        return {"target": [[*targets[i], EOS] for i in kept], "picture": [[places[texts[i][0]]] for i in kept]}, reasons

    return prepare(
        pairs,
        ["captions", tokenizer.digest(), max_length, drop_duplicates],
        encode,
        {"target": ids_below(tokenizer.size), "picture": "uint32"},
        sized=["target"],
        folder=folder,
        unit="captions",
        progress=progress,
    )


def collate_captions(
    corpus: Corpus,
    pictures: Corpus,
    rows: Rows,
    *,
    budget: int = 0,
    rounded: bool = False,
    draw: np.random.Generator | None = None,
    flip: bool = False,
    crop: float = 0.0,
) -> PairBatch:
    """The captions of some rows with their pictures; `draw`, `flip` and `crop`: see `augment`."""
    rows = np.asarray(rows, dtype=np.int64)
    (labels, lengths), (places, _) = corpus.gather("target", rows), corpus.gather("picture", rows)
    pixels, _ = pictures.gather("pixels", places.astype(np.int64))
    if draw is not None:
        pixels = augment(pixels, draw, flip=flip, crop=crop)
    return make_captions(pixels, labels, lengths, rows, budget=budget, rounded=rounded)


def make_captions(
    pixels: Pixels, labels: Rows, lengths: Rows, rows: Rows | None = None, *, budget: int = 0, rounded: bool = False
) -> PairBatch:
    """A batch of pictures [n, 3, S, S] with captions, given all their labels and their lengths [n]."""
    target = np.roll(labels, 1)
    target[lengths.cumsum() - lengths] = BOS
    (layout,) = lay_out(lengths[:, None], budget=budget, rounded=rounded)
    filled = np.zeros((len(layout.segments), *pixels.shape[1:]), np.uint8)
    filled[: len(pixels)] = pixels
    numbers = torch.arange(len(lengths)) if rows is None else torch.from_numpy(rows)
    return PairBatch(numbers, Source(torch.from_numpy(filled)), spread(target, layout), layout, spread(labels, layout))
