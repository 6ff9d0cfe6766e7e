"""BigBird's attention: a local window, a few global tokens, and random blocks."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from pydantic import NonNegativeInt, PositiveInt

from weft.attention.base import Site
from weft.attention.core.pattern_attention import PatternAttention
from weft.attention.core.patterns import Pattern, Union
from weft.attention.global_ import Global
from weft.attention.local import Local
from weft.attention.random_ import Random


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


class BigBirdAttention(PatternAttention):
    """Every query attends to a local window, to the first tokens, which attend to everything, and to random blocks.

    window: how far a query sees
    tokens: number of global tokens at the start, which see and are seen by all
    block: tokens per block
    blocks: random blocks per block of queries
    seed: seed of the random blocks
    bias: whether the projections have a bias
    """

    paper = "Zaheer et al. 2020"
    cost = "n·(window + tokens + block·blocks)"

    def __init__(
        self,
        site: Site,
        *,
        window: PositiveInt = 64,
        tokens: PositiveInt = 1,
        block: PositiveInt = 64,
        blocks: PositiveInt = 3,
        seed: NonNegativeInt = 0,
        bias: bool = True,
    ) -> None:
        pattern = BigBird(site.use == "causal", window=window, tokens=tokens, block=block, blocks=blocks, seed=seed)
        super().__init__(site, pattern, bias=bias)
