"""Attention to blocks drawn by lot."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from weft.attention.base import Site
from weft.attention.core.pattern_attention import PatternAttention
from weft.attention.core.patterns import Pattern, neighbours

NEAREST = 16
"""An encoder's first blocks draw from at least so many."""


@dataclass(frozen=True)
class Random(Pattern):
    """The query's own block, and `blocks` blocks drawn for it by a hash of the block's number.

    Nothing depends on how long the sequence is, so a row sees the same alone, padded, and as it grows. A block draws from those
    up to itself; in an encoder from twice as many, and what lies beyond the end is not there.

    block: tokens of a block
    blocks: blocks drawn for each block of queries
    seed: another one draws other blocks
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
        """Numbers of blocks [C] → the blocks that each sees, [C, 1 + blocks]: its own, then those drawn, some perhaps twice."""
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
        # One more block, of zeros, stands for those that are not there, or came up before.
        drawn = torch.where(again | (drawn >= count), count, drawn)
        blocks = F.pad(blocks, (0, 0) * (x.dim() - 1) + (0, 1))
        return blocks.index_select(1, drawn.flatten()).unflatten(1, drawn.shape).flatten(2, 3)


class RandomAttention(PatternAttention):
    """Every query looks at its own block of the sequence and at a few blocks drawn by lot, always the same ones.

    block: tokens of a block
    blocks: blocks drawn for each block of queries
    seed: another one draws other blocks
    bias: whether the projections have one
    """

    paper = "Zaheer et al. 2020"
    cost = "n·block·blocks"

    def __init__(
        self,
        site: Site,
        *,
        block: PositiveInt = 64,
        blocks: PositiveInt = 3,
        seed: NonNegativeInt = 0,
        bias: bool = True,
    ) -> None:
        pattern = Random(site.use == "causal", block=block, blocks=blocks, seed=seed)
        super().__init__(site, pattern, bias=bias)


def _hash(block: Tensor, lot: Tensor, seed: int) -> Tensor:
    """24 bits well mixed: products wrap, and of their low 32 bits the higher ones are the better mixed."""
    x = (block * 0x9E3779B1 + lot * 0x85EBCA77 + (seed + 1) * 0xC2B2AE3D) & 0xFFFFFFFF
    return (((x ^ (x >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF) >> 8
