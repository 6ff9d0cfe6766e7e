"""Global tokens, and Longformer: a local window and global tokens (Beltagy et al. 2020)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from weft.attention.core.sparsity_patterns import Pattern, PatternAttention, Union, for_each_group
from weft.attention.local import Local
from weft.errors import ConfigError


@dataclass(frozen=True)
class First(Pattern):
    """The first `count` tokens see all tokens and are seen by all."""

    causal: bool
    count: int

    def everywhere(self, extent: int, device: torch.device) -> list[Tensor]:
        """In causal use, they only see each other, as their keys already say."""
        return [] if self.causal else [torch.arange(min(self.count, extent), device=device)[None]]

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return (query < self.count) | (key < self.count)

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        return for_each_group(x[:, : self.count], x.size(1), chunk)


@dataclass(frozen=True)
class Every(Pattern):
    """The tokens at multiples of `step`, counted from `begin`, see all tokens and are seen by all."""

    step: int
    begin: int = 0

    def everywhere(self, extent: int, device: torch.device) -> list[Tensor]:
        return [torch.arange(self.begin, extent, self.step, device=device)[None]] if self.begin < extent else []

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        one, other = ((place >= self.begin) & ((place - self.begin) % self.step == 0) for place in (query, key))
        return one | other

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        return for_each_group(x[:, self.begin :: self.step], x.size(1), chunk)


@dataclass(frozen=True)
class Last(Pattern):
    """The last `count` tokens of a sentence see all tokens and are seen by all. length: see `bound`."""

    count: int
    length: int | Tensor | None = field(default=None, compare=False)

    def bound(self, length: int | Tensor) -> Last:
        return replace(self, length=length)

    def everywhere(self, extent: int, device: torch.device) -> list[Tensor]:
        """In sentences with fewer tokens, positions of padding fill up the set, so that all are distinct."""
        count = min(self.count, extent)
        begin = extent if self.length is None else self.length
        begin = begin[:, None] if isinstance(begin, Tensor) else torch.full((1, 1), begin, device=device)
        return [(begin - count).clamp_min(0) + torch.arange(count, device=device)]

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        length = self.length
        assert length is not None, "the end of a sentence depends on its length; call `bound`"
        if isinstance(length, Tensor):
            length = length.view(*length.shape, *[1] * (query.dim() - length.dim()))
        return (query >= length - self.count) | (key >= length - self.count)

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        (places,) = self.everywhere(x.size(1), x.device)
        row = torch.arange(x.size(0), device=x.device)[:, None] * x.size(1)
        where = row + places
        last = x.flatten(0, 1).index_select(0, where.flatten()).unflatten(0, where.shape)
        return for_each_group(last, x.size(1), chunk)


@dataclass(frozen=True)
class Global(Union):
    """Tokens at certain positions see all tokens and are seen by all.

    Positional parameter: `extra` learned tokens come before the sentence and are global too.

    tokens: number of global tokens at the start, which see and are seen by all
    every: the token at every such position is global too; 0: none
    last: number of global tokens at the end of a sentence; encoder only
    """

    causal: bool
    extra: int = 0
    _: KW_ONLY
    tokens: NonNegativeInt = 1
    every: NonNegativeInt = 0
    last: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if self.causal and self.last:
            raise ConfigError("last: a decoder does not know where a text will end; use tokens or every")
        if not self.globals:
            raise ConfigError("tokens: there is no global token; set tokens, every, last or learned to 1 or more")

    @property
    def globals(self) -> tuple[Pattern, ...]:
        first = [First(self.causal, self.extra + self.tokens)] if self.extra + self.tokens else []
        every = [Every(self.every, self.extra)] if self.every else []
        return (*first, *every, *([Last(self.last)] if self.last else []))

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return self.globals


class GlobalAttention(PatternAttention, pattern=Global, learns=True):
    """Global tokens attend to all tokens and all tokens attend to them; no other pairs attend to each other.

    On its own it sees little. Use it for some of the heads (`mixed`), or with another pattern (`joined`, `longformer`).
    """

    paper = "Ainslie et al. 2020; Beltagy et al. 2020"
    cost = "n·(tokens + n/every)"


@dataclass(frozen=True)
class Longformer(Global):
    """A local window, and global tokens, which see everything.

    window: how far a query sees
    """

    _: KW_ONLY
    window: PositiveInt = 64

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return Local(self.causal, window=self.window), *self.globals


class LongformerAttention(PatternAttention, pattern=Longformer, learns=True):
    """Every query attends to a local window and to the global tokens, which attend to everything.

    Global and other tokens share one set of projections; the published model has a set for each.
    """

    paper = "Beltagy et al. 2020"
    cost = "n·(window + tokens + n/every)"
