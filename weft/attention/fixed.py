"""The fixed pattern of the Sparse Transformer: the query's block, and the last tokens of every block."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from pydantic import PositiveInt
from torch import Tensor

from weft.attention.base import Site
from weft.attention.core import patterns
from weft.attention.core.pattern_attention import PatternAttention
from weft.attention.core.patterns import Pattern, Union
from weft.errors import ConfigError


@dataclass(frozen=True)
class OwnBlock(Pattern):
    """The tokens of the query's own block of `size` tokens."""

    causal: bool
    size: int

    @property
    def chunk(self) -> int:
        return self.size * -(-patterns.SMALLEST // self.size)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return query // self.size == key // self.size

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        beyond = 0 if chunk % self.size == 0 else patterns.margin(self.size)
        return patterns.neighbours(x, chunk, beyond, 0 if self.causal else beyond)


@dataclass(frozen=True)
class Summaries(Pattern):
    """The last `count` tokens of every block of `size`."""

    size: int
    count: int

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return key % self.size + 0 * query >= self.size - self.count

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        last = patterns.neighbours(x, self.size, 0, 0)[:, :, self.size - self.count :].flatten(1, 2)
        return patterns.for_each_group(last, x.size(1), chunk)


@dataclass(frozen=True)
class Fixed(Union):
    """The tokens of the query's own block, and the last `summary` tokens of every block.

    block: tokens per block
    summary: tokens at the end of each block that all queries see
    """

    causal: bool
    _: KW_ONLY
    block: PositiveInt = 32
    summary: PositiveInt = 4

    def __post_init__(self) -> None:
        if self.summary > self.block:
            raise ConfigError(
                f"summary: a block of {self.block} tokens cannot have a summary of {self.summary}; choose {self.block} or less"
            )

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return OwnBlock(self.causal, self.block), Summaries(self.block, self.summary)


class FixedAttention(PatternAttention):
    """Every query attends to its own block and to the last tokens of every block.

    block: tokens per block
    summary: tokens at the end of each block that all queries see
    bias: whether the projections have a bias
    """

    paper = "Child et al. 2019"
    cost = "n·block + n²·summary/block"

    def __init__(self, site: Site, *, block: PositiveInt = 32, summary: PositiveInt = 4, bias: bool = True) -> None:
        super().__init__(site, Fixed(site.use == "causal", block=block, summary=summary), bias=bias)
