"""Files of word vectors in the text format of word2vec, GloVe and fastText: a word and its numbers per line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from weft.data.lines import read_lines
from weft.dictionaries.vectors import Vectors
from weft.errors import DataError


def read_vectors(file: str | Path) -> tuple[list[str], Vectors]:
    """The words of a file (also .gz) and their vectors [V, D]. Of a repeated word, the first vector counts.

    The first line may say how many words and dimensions there are. Words may contain spaces, as some of GloVe do.
    """
    found: dict[str, Vectors] = {}
    width = 0
    for number, line in enumerate(read_lines(file), 1):
        fields = line.rstrip().split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
            width = int(fields[1])
            continue
        width = width or len(fields) - 1
        word = " ".join(fields[:-width]) if 0 < width < len(fields) else ""
        vector = _numbers(fields[-width:]) if word else None
        if vector is None:
            raise DataError(
                f"{file}: line {number}: expected a word and {max(width, 1)} numbers, separated by spaces: {line[:60]!r}"
            )
        found.setdefault(word, vector)
    if not found:
        raise DataError(f"{file}: there are no word vectors in it")
    return list(found), np.stack(list(found.values()))


def _numbers(fields: Sequence[str]) -> Vectors | None:
    """The fields as a vector; None if they are not finite numbers."""
    try:
        vector = np.array(fields, np.float32)
    except ValueError:
        return None
    return vector if np.isfinite(vector).all() else None


def vector_lines(words: Sequence[str], vectors: Vectors) -> Iterator[str]:
    """The lines of a file of word vectors, with the first one for its size."""
    yield f"{len(words)} {vectors.shape[1]}"
    for word, vector in zip(words, vectors, strict=True):
        yield " ".join([word, *(f"{value:.6g}" for value in vector.tolist())])
