"""Word vectors in one space as the first embeddings of tokens.

Shapes: N tokens · D width of a vector.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from torch import Tensor, nn

from weft.data.tokenizer import Tokenizer
from weft.dictionaries.mapping import Mapped
from weft.dictionaries.vectors import Vectors


def token_vectors(mapped: Mapped, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """The tokens [N] that are whole words, and their vectors [N, D]: the mean of those of all words that a token stands for."""
    found: defaultdict[int, list[Vectors]] = defaultdict(list)
    for side in (mapped.source, mapped.target):
        for change in (str, str.capitalize):
            for ids, vector in zip(tokenizer.encode_batch([change(word) for word in side.words]), side.vectors, strict=True):
                if len(ids) == 1:
                    found[ids[0]].append(vector)
    means = np.stack([np.mean(vectors, 0) for vectors in found.values()]) if found else np.zeros((0, 1), np.float32)
    return torch.tensor(list(found)), torch.from_numpy(means)


@torch.no_grad()
def place_vectors(model: nn.Module, size: int, tokens: Tensor, vectors: Tensor) -> None:
    """Puts vectors in the rows of tokens in all embeddings and output layers of `size` tokens.

    The first dimensions of mapped vectors matter most: if the model is narrower, it gets these; if it is wider, its other
    dimensions stay as they are. Rows keep the mean length they had.
    """
    for table in {id(each): each for each in model.parameters() if each.ndim == 2 and each.size(0) == size}.values():
        width = min(table.size(1), vectors.size(1))
        own = vectors[:, :width].to(table)
        length = table[:, :width].norm(dim=1).mean()
        table[tokens, :width] = own / own.norm(dim=1, keepdim=True).clamp_min(1e-9) * length
