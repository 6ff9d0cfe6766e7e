"""From token ids to vectors."""

from __future__ import annotations

import math

from torch import Tensor, nn

from weft.layers.dropout import dropout
from weft.layers.position import LearnedPosition, SinusoidalPosition


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


def embedding_table(size: int, dim: int) -> nn.Embedding:
    """A table whose rows have length about 1, so that it can serve as the output layer too."""
    table = nn.Embedding(size, dim)
    nn.init.normal_(table.weight, std=dim**-0.5)
    return table
