"""Texts with a label each, as a corpus and as batches: columns `source`, with EOS at the end, and `label`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from weft.batch import EOS, NO_LABEL, LabelBatch, Source
from weft.data.batching import lay_out, spread
from weft.data.corpus import Columns, Corpus, Rows, ids_below, prepare
from weft.data.formats import Pairs, Texts
from weft.data.pairs import PairFilters
from weft.data.tokenizer import Tokenizer
from weft.errors import DataError, RunError

SHOWN = 10
"""The most labels that a message lists."""


class Labels:
    """The names of all labels in alphabetical order; a label's id is its place. White space around a name is ignored."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = sorted({name.strip() for name in names} - {""})
        self.ids = {name: number for number, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def find(self, name: str) -> int:
        """The id of a label. Raises DataError for one that is not known."""
        if name.strip() not in self.ids:
            raise DataError(f"the label {name.strip()!r} does not occur in the training data; {self.describe()}")
        return self.ids[name.strip()]

    def check(self, pairs: Pairs) -> None:
        """Raises DataError at the first pair whose label is not known. A blank label is none."""
        for number, (_, label) in enumerate(pairs, start=1):
            try:
                _ = label.strip() and self.find(label)
            except DataError as error:
                raise DataError(f"{pairs.name}, pair {number:,}: {error}") from None

    def describe(self) -> str:
        """The labels as half a sentence."""
        shown = ", ".join(repr(name) for name in islice(self.names, SHOWN))
        return f"known labels are {shown}" + (f" and {len(self.names) - SHOWN} more" if len(self.names) > SHOWN else "")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"labels": self.names}, ensure_ascii=False, indent=0), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Labels:
        try:
            return Labels(json.loads(path.read_text(encoding="utf-8"))["labels"])
        except FileNotFoundError:
            raise RunError(f"{path}: there is no such file") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: this file does not hold labels: {error}") from None


def prepare_labels(
    pairs: Sequence[Pairs],
    tokenizer: Tokenizer,
    labels: Labels,
    *,
    folder: Path,
    max_length: int,
    drop_duplicates: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """The corpus of texts with their labels, from the cache in `folder` or tokenised now.

    Texts are cut after `max_length` tokens. Left out are texts that are empty or have no label, and with `drop_duplicates`
    texts that occurred before with the same label.
    """
    filters = PairFilters(max_length, None, drop_duplicates)

    def encode(texts: Texts) -> tuple[Columns, dict[str, int]]:
        sources = [ids[:max_length] for ids in tokenizer.encode_batch([text for text, _ in texts])]
        found = [[labels.find(label)] if label.strip() else [] for _, label in texts]
        kept, reasons = filters(texts, sources, found)
        return {"source": [[*sources[i], EOS] for i in kept], "label": [found[i] for i in kept]}, reasons

    return prepare(
        pairs,
        ["labels", tokenizer.digest(), labels.names, max_length, drop_duplicates],
        encode,
        {"source": ids_below(tokenizer.size), "label": ids_below(len(labels))},
        sized=["source"],
        folder=folder,
        unit="texts",
        progress=progress,
    )


def collate_labels(corpus: Corpus, rows: Rows, *, budget: int = 0, rounded: bool = False) -> LabelBatch:
    """The texts of some rows with their labels, laid out as `lay_out` does."""
    rows = np.asarray(rows, dtype=np.int64)
    (source, lengths), (labels, _) = corpus.gather("source", rows), corpus.gather("label", rows)
    return make_labelled(source, labels, lengths, rows, budget=budget, rounded=rounded)


def make_labelled(
    source: Rows, labels: Rows, lengths: Rows, rows: Rows | None = None, *, budget: int = 0, rounded: bool = False
) -> LabelBatch:
    """A batch of texts, given all their tokens, their labels [n] and their lengths [n]. Rows that only fill it up have none."""
    (layout,) = lay_out(lengths[:, None], budget=budget, rounded=rounded)
    filled = np.full(len(layout.segments), NO_LABEL, np.int64)
    filled[: len(labels)] = labels
    numbers = torch.arange(len(lengths)) if rows is None else torch.from_numpy(rows)
    return LabelBatch(numbers, Source(spread(source, layout), layout), torch.from_numpy(filled))
