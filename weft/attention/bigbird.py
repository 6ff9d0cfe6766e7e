"""Random blocks, and BigBird: a local window, global tokens and random blocks (Zaheer et al. 2020)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from weft.attention.core.sparsity_patterns import Pattern, PatternAttention, neighbours
from weft.attention.longformer import Longformer


@dataclass(frozen=True)
class Random(Pattern):
    """The query's own block and `blocks` others, distinct, drawn by a hash of the block's number; all if there are fewer.

    A causal block draws from those before it, so a draw is the same at any length. An encoder's block draws from all blocks of
    its sentence, so a draw depends on the length of the sentence, but not on padding or on other sentences.

    Positional parameters: blocks up to `near` away and the `first` blocks are visible anyway, so they are not drawn.

    block: tokens per block
    blocks: random blocks per block of queries
    seed: seed of the random blocks
    """

    causal: bool
    near: int = 0
    first: int = 0
    length: int | Tensor | None = field(default=None, compare=False)
    _: KW_ONLY
    block: PositiveInt = 64
    blocks: PositiveInt = 3
    seed: NonNegativeInt = 0
    _gathered: dict[int, Tensor] = field(init=False, default_factory=dict, compare=False, repr=False)
    insists = True

    @property
    def chunk(self) -> int:
        return self.block

    def bound(self, length: int | Tensor) -> Random:
        """A copy, which draws its blocks once for keys and values."""
        return replace(self, length=length)

    def draw(self, block: Tensor, length: int | Tensor) -> Tensor:
        """Block numbers → the blocks drawn for each, […, blocks]; −1 where none is left. `length` broadcasts to `block`.

        Floyd's algorithm draws r of m numbers: the l-th is at most m − r + l, which also replaces one that was drawn before.
        """
        blocks = (length + self.block - 1) // self.block
        before = block - self.near - self.first if self.causal else (block - self.near).clamp_max(blocks) - self.first
        before = before.clamp_min(0)
        beyond = (block + self.near + 1).clamp_min(self.first)
        total = before if self.causal else before + (blocks - beyond).clamp_min(0)
        count = total.clamp_max(self.blocks)
        numbers: list[Tensor] = []
        for draw in range(self.blocks):
            top = total - count + draw
            number = _hash(block, draw + 1, self.seed) % (top + 1)
            for earlier in numbers:
                number = torch.where(number == earlier, top, number)
            numbers.append(number)
        placed = [torch.where(each < before, each + self.first, each - before + beyond) for each in numbers]
        return torch.stack([each.where(count > draw, -1) for draw, each in enumerate(placed)], -1)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        mine, theirs = (place.long().div(self.block, rounding_mode="floor") for place in (query, key))
        seen = mine == theirs
        for drawn in self.draw(mine, self._length(query.dim())).unbind(-1):
            seen = seen | (drawn == theirs)
        return seen

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        blocks = neighbours(x, self.block, 0, 0)
        # An extra block of zeros for each row stands for blocks that were not drawn.
        blocks, count = F.pad(blocks, (0, 0) * (x.dim() - 1) + (0, 1)).flatten(0, 1), blocks.size(1)
        row = torch.arange(x.size(0), device=x.device)[:, None, None] * (count + 1)
        where = row + self._blocks(x, count)
        return blocks.index_select(0, where.flatten()).unflatten(0, where.shape).flatten(2, 3)

    def _blocks(self, x: Tensor, count: int) -> Tensor:
        """[1 or B, count, 1 + blocks]: the blocks that each sees, its own first; `count` where none is left to draw."""
        if self.length is not None and count in self._gathered:
            return self._gathered[count]
        own = torch.arange(count, device=x.device)[None]
        drawn = self.draw(own, x.size(1) if self.length is None else self._length(2))
        drawn = torch.cat([own.expand(drawn.shape[:2])[..., None], drawn.where(drawn >= 0, count)], -1)
        if self.length is not None:
            self._gathered[count] = drawn
        return drawn

    def _length(self, axes: int) -> int | Tensor:
        """The length of the rows, with as many axes as positions have."""
        if isinstance(self.length, Tensor):
            return self.length.view(*self.length.shape, *[1] * (axes - self.length.dim()))
        assert self.causal or self.length is not None, "an encoder's random blocks depend on the length; call `bound`"
        return self.length or 0


class RandomAttention(PatternAttention, pattern=Random):
    """Every query attends to its own block and to a few fixed random blocks."""

    paper = "Zaheer et al. 2020"
    cost = "n·block·blocks"


def _hash(block: Tensor, draw: int, seed: int) -> Tensor:
    """24 well-mixed bits: products wrap at 32 bits, and the higher ones are the better mixed."""
    x = (block * 0x9E3779B1 + draw * 0x85EBCA77 + (seed + 1) * 0xC2B2AE3D) & 0xFFFFFFFF
    return (((x ^ (x >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF) >> 8


@dataclass(frozen=True)
class BigBird(Longformer):
    """A local window, global tokens, and random blocks among those that window and first tokens leave out.

    block: tokens per block
    blocks: random blocks per block of queries
    seed: seed of the random blocks
    """

    _: KW_ONLY
    block: PositiveInt = 64
    blocks: PositiveInt = 3
    seed: NonNegativeInt = 0

    @property
    def parts(self) -> tuple[Pattern, ...]:
        # Blocks that every query of a block sees completely by the window, and those that only have global tokens.
        near = max(0, (self.window + (0 if self.causal else 1)) // self.block - 1)
        first = (self.extra + self.tokens) // self.block
        drawn = Random(self.causal, near, first, block=self.block, blocks=self.blocks, seed=self.seed)
        return *super().parts, drawn


class BigBirdAttention(PatternAttention, pattern=BigBird, learns=True):
    """Every query attends to a local window, to global tokens, which attend to everything, and to random blocks."""

    paper = "Zaheer et al. 2020"
    cost = "n·(window + tokens + n/every + block·blocks)"
