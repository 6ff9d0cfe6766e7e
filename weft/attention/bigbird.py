"""Random blocks, and BigBird: a local window, global tokens and random blocks (Zaheer et al. 2020)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from weft.attention.core.block_sparse import PatternAttention
from weft.attention.core.patterns import Pattern, Union, neighbours
from weft.attention.local import Local
from weft.attention.longformer import Global

NEAREST = 16
"""The smallest number of blocks from which an encoder's first blocks draw."""


@dataclass(frozen=True)
class Random(Pattern):
    """The query's own block, and `blocks` blocks drawn by a hash of the block's number.

    The draw does not depend on the length of the sequence, so a row sees the same blocks alone, padded, and as it grows. A
    causal block draws from those up to itself, an encoder's from twice as many; blocks beyond the end are ignored.

    block: tokens per block
    blocks: random blocks per block of queries
    seed: seed of the random blocks
    """

    causal: bool
    _: KW_ONLY
    block: PositiveInt = 64
    blocks: PositiveInt = 3
    seed: NonNegativeInt = 0
    insists = True

    @property
    def chunk(self) -> int:
        return self.block

    def draws(self, block: Tensor) -> Tensor:
        """Block numbers [C] → the blocks that each sees, [C, 1 + blocks]: its own, then random ones, possibly with repeats."""
        lot = torch.arange(1, self.blocks + 1, device=block.device)
        span = (block + 1).clamp_min(1) if self.causal else (2 * block + 2).clamp_min(NEAREST)
        return torch.cat([block[:, None], _hash(block[:, None], lot, self.seed) % span[:, None]], 1)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        mine, theirs = (place.long().div(self.block, rounding_mode="floor") for place in (query, key))
        return (self.draws(mine.flatten()).view(*mine.shape, -1) == theirs[..., None]).any(-1)

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        blocks = neighbours(x, self.block, 0, 0)
        count = blocks.size(1)
        drawn = self.draws(torch.arange(count, device=x.device))
        again = (drawn[:, :, None] == drawn[:, None]).tril(-1).any(-1)
        # An extra block of zeros replaces blocks beyond the end and repeats.
        drawn = torch.where(again | (drawn >= count), count, drawn)
        blocks = F.pad(blocks, (0, 0) * (x.dim() - 1) + (0, 1))
        return blocks.index_select(1, drawn.flatten()).unflatten(1, drawn.shape).flatten(2, 3)


class RandomAttention(PatternAttention, pattern=Random):
    """Every query attends to its own block and to a few fixed random blocks."""

    paper = "Zaheer et al. 2020"
    cost = "n·block·blocks"


def _hash(block: Tensor, lot: Tensor, seed: int) -> Tensor:
    """24 well-mixed bits: products wrap at 32 bits, and the higher ones are the better mixed."""
    x = (block * 0x9E3779B1 + lot * 0x85EBCA77 + (seed + 1) * 0xC2B2AE3D) & 0xFFFFFFFF
    return (((x ^ (x >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF) >> 8


@dataclass(frozen=True)
class BigBird(Union):
    """A local window, global first tokens, and random blocks.

    window: how far a query sees
    tokens: number of global tokens at the start, which see and are seen by all
    block: tokens per block
    blocks: random blocks per block of queries
    seed: seed of the random blocks
    """

    causal: bool
    _: KW_ONLY
    window: PositiveInt = 64
    tokens: PositiveInt = 1
    block: PositiveInt = 64
    blocks: PositiveInt = 3
    seed: NonNegativeInt = 0

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return (
            Local(self.causal, window=self.window),
            Global(self.causal, tokens=self.tokens),
            Random(self.causal, block=self.block, blocks=self.blocks, seed=self.seed),
        )


class BigBirdAttention(PatternAttention, pattern=BigBird):
    """Every query attends to a local window, to the first tokens, which attend to everything, and to random blocks."""

    paper = "Zaheer et al. 2020"
    cost = "n·(window + tokens + block·blocks)"
