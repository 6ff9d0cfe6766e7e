"""Attention through a few global tokens."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from pydantic import PositiveInt
from torch import Tensor

from weft.attention.base import Site
from weft.attention.core.pattern_attention import PatternAttention
from weft.attention.core.patterns import Pattern, for_each_group


@dataclass(frozen=True)
class Global(Pattern):
    """The first `tokens` tokens see all tokens and are seen by all.

    tokens: number of global tokens at the start
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
    """The first tokens attend to all tokens and all tokens attend to them; no other pairs attend to each other.

    On its own it sees little. Use it for some of the heads (`mixed`), or together with another pattern (`joined`,
    `longformer`).

    tokens: number of global tokens at the start, which see and are seen by all
    bias: whether the projections have a bias
    """

    paper = "Ainslie et al. 2020; Beltagy et al. 2020"
    cost = "n·tokens"

    def __init__(self, site: Site, *, tokens: PositiveInt = 1, bias: bool = True) -> None:
        super().__init__(site, Global(site.use == "causal", tokens=tokens), bias=bias)
