"""Scores that do not depend on keys: one number per key position, from the query or from its position.

Shapes: B rows · H heads · T queries · L positions · D model width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Synthetic(nn.Module, ABC):
    """Scores of all positions."""

    @abstractmethod
    def forward(self, query: Tensor, place: Tensor) -> Tensor:
        """query [B, T, D] at positions `place` [B, T] → [B, H, T, L]; positions that are the same in all rows may be [1, T]."""


class RandomScores(Synthetic):
    """A random number for each pair of positions, trained or fixed (Tay et al. 2020, section 3.2)."""

    def __init__(self, heads: int, length: int, trained: bool) -> None:
        super().__init__()
        table = torch.randn(heads, length, length)
        if trained:
            self.table = nn.Parameter(table)
        else:
            self.register_buffer("table", table)

    def forward(self, query: Tensor, place: Tensor) -> Tensor:
        return self.table[:, place].transpose(0, 1)


class FactoredRandomScores(Synthetic):
    """The same table as a product R₁R₂ᵀ of rank k (section 3.4)."""

    def __init__(self, heads: int, length: int, rank: int) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.randn(heads, length, rank) * rank**-0.25) for _ in range(2))

    def forward(self, query: Tensor, place: Tensor) -> Tensor:
        return self.left[:, place].transpose(0, 1) @ self.right.transpose(-1, -2)


class TokenNetwork(nn.Module):
    """W₂ relu(W₁x + b₁) + b₂ in each head, or Wx + b with one layer: `size` numbers per token."""

    def __init__(self, dim: int, heads: int, size: int, layers: int) -> None:
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.hidden = nn.Linear(dim, dim) if layers == 2 else None
        self.weight = nn.Parameter(torch.empty(heads, dim if self.hidden is None else self.width, size))
        self.bias = nn.Parameter(torch.zeros(heads, 1, size))
        for head in self.weight.detach():
            nn.init.xavier_uniform_(head)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] → [B, H, T, size]."""
        if self.hidden is None:
            x = x[:, None]
        else:
            x = F.relu(self.hidden(x)).unflatten(-1, (self.heads, self.width)).transpose(1, 2)
        return x @ self.weight + self.bias


class DenseScores(Synthetic):
    """The score of each position, from the query (section 3.1)."""

    def __init__(self, dim: int, heads: int, length: int, layers: int) -> None:
        super().__init__()
        self.network = TokenNetwork(dim, heads, length, layers)

    def forward(self, query: Tensor, place: Tensor) -> Tensor:
        scores: Tensor = self.network(query)
        return scores


class FactoredDenseScores(Synthetic):
    """a and b numbers per query with a·b ≥ L; the score of position p·b + q is the product of numbers p and q (section 3.3)."""

    def __init__(self, dim: int, heads: int, length: int, layers: int) -> None:
        super().__init__()
        self.length, outer = length, math.ceil(math.sqrt(length))
        self.outer = TokenNetwork(dim, heads, outer, layers)
        self.inner = TokenNetwork(dim, heads, -(-length // outer), layers)

    def forward(self, query: Tensor, place: Tensor) -> Tensor:
        return (self.outer(query)[..., :, None] * self.inner(query)[..., None, :]).flatten(-2)[..., : self.length]
