"""Global tokens, and Longformer: a local window and global tokens (Beltagy et al. 2020)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from pydantic import PositiveInt
from torch import Tensor

from weft.attention.core.block_sparse import PatternAttention
from weft.attention.core.patterns import Pattern, Union, for_each_group
from weft.attention.local import Local


@dataclass(frozen=True)
class Global(Pattern):
    """The first `tokens` tokens see all tokens and are seen by all.

    tokens: number of global tokens at the start, which see and are seen by all
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


class GlobalAttention(PatternAttention, pattern=Global):
    """The first tokens attend to all tokens and all tokens attend to them; no other pairs attend to each other.

    On its own it sees little. Use it for some of the heads (`mixed`), or together with another pattern (`joined`,
    `longformer`).
    """

    paper = "Ainslie et al. 2020; Beltagy et al. 2020"
    cost = "n·tokens"


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


class LongformerAttention(PatternAttention, pattern=Longformer):
    """Every query attends to a local window and to the first tokens, which attend to everything.

    Global and other tokens share one set of projections; the published model has a set for each.
    """

    paper = "Beltagy et al. 2020"
    cost = "n·(window + tokens)"
