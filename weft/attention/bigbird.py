"""BigBird's attention: the neighbourhood, a few global tokens, and blocks drawn by lot."""

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
    """The neighbourhood, the first tokens, which see everything, and blocks drawn by lot.

    window: how far a query sees
    tokens: how many tokens, the first ones, see and are seen by all
    block: tokens of a block
    blocks: blocks drawn for each block of queries
    seed: another one draws other blocks
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
    """Every query looks at its neighbourhood, at the first tokens, which look at everything, and at blocks drawn by lot.

    window: how far a query sees
    tokens: how many tokens, the first ones, see and are seen by all
    block: tokens of a block
    blocks: blocks drawn for each block of queries
    seed: another one draws other blocks
    bias: whether the projections have one
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
