"""Longformer's attention: a local window and a few global tokens."""

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
    """A local window, and the first tokens, which see everything.

    window: how far a query sees
    tokens: number of global tokens at the start, which see and are seen by all
    """

    causal: bool
    _: KW_ONLY
    window: PositiveInt = 64
    tokens: PositiveInt = 1

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return Local(self.causal, window=self.window), Global(self.causal, tokens=self.tokens)


class LongformerAttention(PatternAttention):
    """Every query attends to a local window and to the first tokens, which attend to everything.

    Global and other tokens share one set of projections; the published model has a set for each.

    window: how far a query sees
    tokens: number of global tokens at the start, which see and are seen by all
    bias: whether the projections have a bias
    """

    paper = "Beltagy et al. 2020"
    cost = "n·(window + tokens)"

    def __init__(self, site: Site, *, window: PositiveInt = 64, tokens: PositiveInt = 1, bias: bool = True) -> None:
        super().__init__(site, Longformer(site.use == "causal", window=window, tokens=tokens), bias=bias)
