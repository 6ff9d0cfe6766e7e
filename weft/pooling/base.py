"""The interface of every pooling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor, nn

from weft.batch import Layout


@dataclass
class Pooled:
    """vectors [B, r, D] · weights [B, r, S] if there are any · extras: unreduced quantities [B] by name, in training only."""

    vectors: Tensor
    weights: Tensor | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)


class Pooling(nn.Module, ABC):
    """Reduces a padded sequence to r vectors.

    Declared facts, each verified by tests: what weights sum to, whether the order of tokens matters, and whether all tokens
    matter or the data decides which do.
    """

    paper: ClassVar[str] = ""
    weights_sum: ClassVar[Literal["one"] | None] = None
    ignores_key_order: ClassVar[bool] = True
    reach: ClassVar[Literal["all", "data"]] = "all"
    extras: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, dim: int, rows: int = 1) -> None:
        super().__init__()
        self.dim, self.rows = dim, rows

    @abstractmethod
    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        """memory [B, S, D] → vectors [B, r, D]; an empty row gives zeros."""
