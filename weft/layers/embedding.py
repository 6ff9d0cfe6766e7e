"""From token ids to vectors."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor, nn

from weft.errors import ConfigError
from weft.layers.dropout import dropout
from weft.layers.position import LearnedPosition, SinusoidalPosition

Sharing = Literal["all", "output", "none"]
"""Which embedding tables are one: those of source, target and output; of target and output; none."""


class TokenEmbedding(nn.Module):
    """A vector for each token, times √dim as in Vaswani et al. 2017, plus its position's vector, with dropout.

    The table may be shared: with the other side, and with the output layer.
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


def embedding_table(size: int, dim: int, std: float | None = None) -> nn.Embedding:
    """A table whose rows have length about 1 unless `std` says otherwise, so that it can serve as the output layer too."""
    table = nn.Embedding(size, dim)
    nn.init.normal_(table.weight, std=dim**-0.5 if std is None else std)
    return table


def embedding_tables(
    source: int, target: int, one_vocabulary: bool, dim: int, share: Sharing, std: float | None = None
) -> tuple[nn.Embedding, nn.Embedding, nn.Embedding]:
    """Tables for source, target and output, given the sizes of the two vocabularies and whether they are one."""
    if share == "all" and not one_vocabulary:
        raise ConfigError(
            "model.share_embeddings: all needs one vocabulary for both sides; "
            "set data.shared_vocabulary: true, or model.share_embeddings: output"
        )
    writes = embedding_table(target, dim, std)
    reads = writes if share == "all" else embedding_table(source, dim, std)
    output = embedding_table(target, dim, std) if share == "none" else writes
    return reads, writes, output
