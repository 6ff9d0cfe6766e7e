"""Token embeddings."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from weft.batch import PAD, Layout
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.dropout import dropout
from weft.layers.position import LearnedPosition, SinusoidalPosition
from weft.layers.readout import output_layer

Sharing = Literal["all", "output", "none"]
"""Which embedding tables are shared: source, target and output; target and output; none."""

HASH_BASE, HASH_PRIME = 1_000_003, 2**31 - 1
"""An n-gram is hashed as a number in this base modulo this prime: below 2⁶² before reduction, so equal on every device."""


class TokenEmbedding(nn.Module):
    """A vector per token, times √dim as in Vaswani et al. 2017, plus the vector of its position, with dropout.

    The table may be shared with the other side and with the output layer.
    """

    def __init__(
        self, table: nn.Embedding, position: SinusoidalPosition | LearnedPosition | None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.table, self.position, self.dropout = table, position, dropout
        self.scale = math.sqrt(table.embedding_dim)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens, positions [B, T] → [B, T, dim]."""
        x = self.table(tokens) * self.scale
        if self.position is not None:
            x = x + self.position(positions).to(x.dtype)
        return dropout(x, self.dropout, self.training)


class NGramEmbedding(nn.Module):
    """A vector per token plus those of the n-grams that end with it, n = 2 … N, times √dim, with dropout.

    This is the bag of character n-grams of Kalchbrenner et al. 2016. N-grams of all lengths share one table, `ngrams`, by hash;
    its row 0 is for n-grams that would begin before their sentence, and counts as zero. All n-grams end at the token, so the
    embedding also works in a decoder; its state is the last N − 1 tokens.
    """

    def __init__(self, table: nn.Embedding, ngrams: nn.EmbeddingBag | None, longest: int, dropout: float) -> None:
        super().__init__()
        self.table, self.ngrams, self.dropout = table, ngrams, dropout
        self.window = TokenWindow(1, longest, causal=True)
        self.scale = math.sqrt(table.embedding_dim)

    def start(self, rows: int) -> Tensor | None:
        """The tail before the first token, [rows, N − 1, 1] ids."""
        return self.window.start(rows, torch.empty(0, dtype=torch.long, device=self.table.weight.device))

    def forward(self, tokens: Tensor, tail: Tensor | None, layout: Layout | None) -> tuple[Tensor, Tensor | None]:
        """tokens [B, T] → [B, T, dim], and the tail after them."""
        x = self.table(tokens)
        if self.ngrams is not None:
            grams, tail = self.window(tokens[..., None], tail, layout)
            bags = _hashed(grams, self.ngrams.num_embeddings)
            x = x + self.ngrams(bags.flatten(0, 1)).view_as(x)
        return dropout(x * self.scale, self.dropout, self.training), tail


def ngram_table(buckets: int, dim: int) -> nn.EmbeddingBag:
    """Vectors of n-grams by hash. They start at 0, so that n-grams unseen in training have no effect."""
    table = nn.EmbeddingBag(buckets + 1, dim, mode="sum", padding_idx=0)
    nn.init.zeros_(table.weight)
    return table


def embedding_table(size: int, dim: int, std: float | None = None) -> nn.Embedding:
    """A table whose rows have length about 1, unless `std` is given, so that it can also be the output layer."""
    table = nn.Embedding(size, dim)
    nn.init.normal_(table.weight, std=dim**-0.5 if std is None else std)
    return table


def embedding_tables(
    source: int, target: int, one_vocabulary: bool, dim: int, share: Sharing, std: float | None = None
) -> tuple[nn.Embedding, nn.Embedding, nn.Linear]:
    """Tables for source and target and the output layer, given the sizes of the two vocabularies and whether they are equal."""
    if share == "all" and not one_vocabulary:
        raise ConfigError(
            "model.share_embeddings: all needs one vocabulary for both sides; "
            "set data.shared_vocabulary: true, or model.share_embeddings: output"
        )
    writes = embedding_table(target, dim, std)
    reads = writes if share == "all" else embedding_table(source, dim, std)
    output = embedding_table(target, dim, std) if share == "none" else writes
    return reads, writes, output_layer(output)


def _hashed(grams: Tensor, rows: int) -> Tensor:
    """The last N tokens at each position, grams [B, T, N] → rows [B, T, N − 1] of the n-grams ending there, shortest first."""
    *earlier, code = grams.unbind(-1)
    hashed = []
    for token in reversed(earlier):
        code = (code * HASH_BASE + token) % HASH_PRIME
        hashed.append(torch.where(token == PAD, 0, code % (rows - 1) + 1))
    return torch.stack(hashed, -1)
