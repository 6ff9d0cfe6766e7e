"""The Longformer's attention: the neighbourhood and a few global tokens."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from pydantic import PositiveInt

from weft.attention.base import Site
from weft.attention.core.pattern_attention import PatternAttention
from weft.attention.core.patterns import Pattern, Union
from weft.attention.global_ import Global
from weft.attention.local import Local


@dataclass(frozen=True)
class Longformer(Union):
    """The neighbourhood, and the first tokens, which see everything.

    window: how far a query sees
    tokens: how many tokens, the first ones, see and are seen by all
    """

    causal: bool
    _: KW_ONLY
    window: PositiveInt = 64
    tokens: PositiveInt = 1

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return Local(self.causal, window=self.window), Global(self.causal, tokens=self.tokens)


class LongformerAttention(PatternAttention):
    """Every query looks at its neighbourhood and at the first tokens, and these look at everything.

    Global and other tokens have the same projections; as published they have one set each.

    window: how far a query sees
    tokens: how many tokens, the first ones, see and are seen by all
    bias: whether the projections have one
    """

    paper = "Beltagy et al. 2020"
    cost = "n·(window + tokens)"

    def __init__(self, site: Site, *, window: PositiveInt = 64, tokens: PositiveInt = 1, bias: bool = True) -> None:
        super().__init__(site, Longformer(site.use == "causal", window=window, tokens=tokens), bias=bias)
