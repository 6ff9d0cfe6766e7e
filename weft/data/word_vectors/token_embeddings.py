"""Word vectors as the first embeddings of tokens.

Shapes: N tokens · D width of a vector.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from weft.data.tokenizers.base import Tokenizer
from weft.data.word_vectors.vectors import Vectors

TABLES = ("table.weight", "decoder.output.weight")
POSITIONS = "position.table.weight"
"""How the names of embeddings and of output layers over tokens end, and those of embeddings of positions."""


def token_vectors(words: Sequence[str], vectors: Vectors, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """The tokens [N] that are whole words, and their vectors [N, D]: the mean of those of all words that a token stands for.

    A capitalised word that is not among the words has the vector of the word itself.
    """
    known, found = set(words), defaultdict[int, list[int]](list)
    both = [*enumerate(words), *((row, name) for row, word in enumerate(words) if (name := word.capitalize()) not in known)]
    for (row, _), ids in zip(both, tokenizer.encode_batch([word for _, word in both]), strict=True):
        if len(ids) == 1:
            found[ids[0]].append(row)
    means = np.stack([vectors[rows].mean(0) for rows in found.values()]) if found else np.zeros((0, 1), np.float32)
    return torch.tensor(list(found), dtype=torch.long), torch.from_numpy(means)


def token_tables(model: nn.Module, size: int) -> dict[str, nn.Parameter]:
    """The embeddings and output layers of at least `size` tokens, by name. Tied ones are named once."""
    named = {name: table for name, table in model.named_parameters() if name.endswith(TABLES) and table.size(0) >= size}
    return {name: table for name, table in named.items() if not name.endswith(POSITIONS)}


@torch.no_grad()
def place_vectors(tables: Iterable[Tensor], tokens: Tensor, vectors: Tensor) -> None:
    """Puts vectors in the rows of tokens, with the mean length that rows had.

    A table that is narrower than the vectors gets their first dimensions, which matter most in vectors that weft learns. In a
    wider one, the other dimensions stay as they are.
    """
    for table in tables:
        width = min(table.size(1), vectors.size(1))
        own = vectors[:, :width].to(table)
        length = table[:, :width].norm(dim=1).mean()
        table[tokens, :width] = own / own.norm(dim=1, keepdim=True).clamp_min(1e-9) * length
