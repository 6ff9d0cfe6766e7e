"""Patterns of the Sparse Transformer (Child et al. 2019): strided and fixed."""

from dataclasses import KW_ONLY, dataclass

from pydantic import PositiveInt
from torch import Tensor

from weft.attention.core import sparsity_patterns
from weft.attention.core.sparsity_patterns import Pattern, PatternAttention, Union
from weft.errors import ConfigError


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
        return sparsity_patterns.neighbours(x, self.stride, 0, 0).transpose(1, 2)

    def split(self, x: Tensor, chunk: int) -> Tensor:
        return self.keys(x, chunk)

    def join(self, x: Tensor, extent: int) -> Tensor:
        return x.transpose(1, 2).flatten(1, 2)[:, :extent]


class StridedAttention(PatternAttention, pattern=Strided):
    """Every query attends to the keys at distances that are multiples of `stride`, including its own.

    The Sparse Transformer combines it with attention to the last `stride` tokens, by `mixed` heads or in `joined` ones.
    """

    paper = "Child et al. 2019"
    cost = "n²/stride"


@dataclass(frozen=True)
class OwnBlock(Pattern):
    """The tokens of the query's own block of `size` tokens."""

    causal: bool
    size: int

    @property
    def chunk(self) -> int:
        return self.size * -(-sparsity_patterns.SMALLEST // self.size)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return query // self.size == key // self.size

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        beyond = 0 if chunk % self.size == 0 else sparsity_patterns.margin(self.size)
        return sparsity_patterns.neighbours(x, chunk, beyond, 0 if self.causal else beyond)


@dataclass(frozen=True)
class Summaries(Pattern):
    """The last `count` tokens of every block of `size`."""

    size: int
    count: int

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return key % self.size + 0 * query >= self.size - self.count

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        last = sparsity_patterns.neighbours(x, self.size, 0, 0)[:, :, self.size - self.count :].flatten(1, 2)
        return sparsity_patterns.for_each_group(last, x.size(1), chunk)


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


class FixedAttention(PatternAttention, pattern=Fixed):
    """Every query attends to its own block and to the last tokens of every block."""

    paper = "Child et al. 2019"
    cost = "n·block + n²·summary/block"
