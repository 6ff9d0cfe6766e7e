"""Attention by way of a few tokens."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from pydantic import PositiveInt
from torch import Tensor

from weft.attention.base import Site
from weft.attention.core.pattern_attention import PatternAttention
from weft.attention.core.patterns import Pattern, for_each_group


@dataclass(frozen=True)
class Global(Pattern):
    """The first `tokens` tokens are seen by all queries, and see all.

    tokens: how many tokens, the first ones, see and are seen by all
    """

    causal: bool
    _: KW_ONLY
    tokens: PositiveInt = 1

    @property
    def rows(self) -> int:
        return self.tokens

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return (query < self.tokens) | (key < self.tokens)

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        return for_each_group(x[:, : self.tokens], x.size(1), chunk)


class GlobalAttention(PatternAttention):
    """The first tokens of a sequence look at all tokens, and all tokens look at them; the others do not see each other.

    By itself it sees little: it is meant for some of the heads (`mixed`), or beside another pattern (`joined`, `longformer`).

    tokens: how many tokens, the first ones, see and are seen by all
    bias: whether the projections have one
    """

    paper = "Ainslie et al. 2020; Beltagy et al. 2020"
    cost = "n·tokens"

    def __init__(self, site: Site, *, tokens: PositiveInt = 1, bias: bool = True) -> None:
        super().__init__(site, Global(site.use == "causal", tokens=tokens), bias=bias)
