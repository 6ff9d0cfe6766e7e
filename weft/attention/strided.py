"""Attention to tokens at regular intervals."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from pydantic import PositiveInt
from torch import Tensor

from weft.attention.base import Site
from weft.attention.core.pattern_attention import PatternAttention
from weft.attention.core.patterns import Pattern, neighbours


@dataclass(frozen=True)
class Strided(Pattern):
    """The tokens at distances that are multiples of `stride`. Positions with the same remainder form a group.

    stride: distance between the tokens that a query sees
    """

    causal: bool
    _: KW_ONLY
    stride: PositiveInt = 32
    regroups = True

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key) % self.stride == 0

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        return neighbours(x, self.stride, 0, 0).transpose(1, 2)

    def split(self, x: Tensor, chunk: int) -> Tensor:
        return self.keys(x, chunk)

    def join(self, x: Tensor, extent: int) -> Tensor:
        return x.transpose(1, 2).flatten(1, 2)[:, :extent]


class StridedAttention(PatternAttention):
    """Every query attends to the keys at distances that are multiples of `stride`, including its own.

    The Sparse Transformer combines it with attention to the last `stride` tokens, in separate heads (`mixed`) or in one
    (`joined`).

    stride: distance between the tokens that a query sees
    bias: whether the projections have a bias
    """

    paper = "Child et al. 2019"
    cost = "n²/stride"

    def __init__(self, site: Site, *, stride: PositiveInt = 32, bias: bool = True) -> None:
        super().__init__(site, Strided(site.use == "causal", stride=stride), bias=bias)
