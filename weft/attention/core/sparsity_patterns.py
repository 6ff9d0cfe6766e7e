"""Patterns: which keys a query may attend to by position, and how to gather them efficiently.

`allows` says exactly which pairs of positions may attend to each other. For long sequences, queries are split into groups, and
`keys` gathers for each group the few keys that any of its queries may attend to; disallowed pairs are then masked. Gathering
too many keys costs time. Gathering too few is caught by the tests against the masked full matrix.

Shapes: B rows · n tokens · C groups · T queries of a group · S keys of a group · E extra tokens · … further axes of a token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Attended, Site, join_heads
from weft.attention.core.dot_product import mix
from weft.attention.core.kv_cache import ConcatenatedKeyValues
from weft.attention.core.multihead import MultiHead
from weft.config.registry import Among, build
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.recurrent import repack, unpack

PATTERNS = {
    "full": "weft.attention.core.sparsity_patterns:Everything",
    "local": "weft.attention.local:Local",
    "strided": "weft.attention.sparse_transformer:Strided",
    "fixed": "weft.attention.sparse_transformer:Fixed",
    "global": "weft.attention.longformer:Global",
    "random": "weft.attention.bigbird:Random",
    "longformer": "weft.attention.longformer:Longformer",
    "bigbird": "weft.attention.bigbird:BigBird",
}
"""The patterns that a head may have. Each is also an attention of its own."""

PatternSpec = Annotated[dict[str, Any], Among("weft.attention.core.sparsity_patterns:PATTERNS")]
"""A pattern in a configuration: its name, or its `kind` and options."""

SMALLEST = 64
"""The smallest group of queries, if the pattern leaves the choice: smaller products do not pay off."""

LARGEST = 1024
"""The largest group of queries."""


class Pattern(ABC):
    """A set of pairs of positions. Patterns with equal settings are equal, and have the options of the attention of that name.

    insists    whether groups of queries must have exactly `chunk` members
    regroups   whether its groups are not neighbours, so that other patterns cannot share them
    """

    insists: bool = False
    regroups: bool = False

    @abstractmethod
    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """bool, for positions of broadcastable shapes. In causal use, later keys are excluded separately."""

    @abstractmethod
    def keys(self, x: Tensor, chunk: int) -> Tensor:
        """x [B, n, …] → [B, C, S, …]: the keys that each group may attend to; zeros beyond the ends."""

    @property
    def chunk(self) -> int:
        """The preferred number of neighbouring queries in a group."""
        return LARGEST

    def everywhere(self, extent: int, device: torch.device) -> list[Tensor]:
        """The positions [1 or B, G] of queries that attend to everything (causal: everything before), in one or more sets."""
        return []

    @property
    def span(self) -> tuple[int, int] | None:
        """(before, after) if a query sees exactly the tokens up to that far before and after it."""
        return None

    @property
    def parts(self) -> tuple[Pattern, ...]:
        """The simple patterns whose union this is."""
        return (self,)

    def split(self, x: Tensor, chunk: int) -> Tensor:
        """x [B, n, …] → [B, C, T, …]: queries in groups, padded with zeros."""
        return neighbours(x, chunk, 0, 0)

    def join(self, x: Tensor, extent: int) -> Tensor:
        """[B, C, T, …] → [B, n, …], the inverse of `split`."""
        return x.flatten(1, 2)[:, :extent]

    def bound(self, length: int | Tensor) -> Pattern:
        """The pattern for sentences of these lengths (one, [B] per row, or [B, n] per token), if it depends on them."""
        return self

    def sees(self, length: int, causal: bool) -> Tensor:
        """[length, length] bool."""
        place = torch.arange(length)
        seen = self.bound(length).allows(place[:, None], place[None])
        return seen.tril() if causal else seen


class Union(Pattern):
    """The pairs that any of several patterns allows, in one softmax."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Pattern, ...]: ...

    def everywhere(self, extent: int, device: torch.device) -> list[Tensor]:
        return [places for part in self.parts for places in part.everywhere(extent, device)]

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return reduce(torch.logical_or, (part.allows(query, key) for part in self.parts))

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        return torch.cat([part.keys(x, chunk) for part in self.parts], 2)

    def bound(self, length: int | Tensor) -> Pattern:
        return Joined(tuple(part.bound(length) for part in self.parts))


@dataclass(frozen=True)
class Joined(Union):
    """The union of the given patterns."""

    patterns: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        blocks = {part.chunk for part in self.parts if part.insists}
        if len(blocks) > 1:
            raise ConfigError(
                f"patterns: random patterns in one head need the same block size, not {', '.join(map(str, sorted(blocks)))}"
            )

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return tuple(part for pattern in self.patterns for part in pattern.parts)


@dataclass(frozen=True)
class Everything(Pattern):
    """Every token."""

    causal: bool

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones(torch.broadcast_shapes(query.shape, key.shape), dtype=torch.bool, device=key.device)

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        return for_each_group(x, x.size(1), chunk)


def build_patterns(specs: list[dict[str, Any]], causal: bool) -> list[Pattern]:
    return [build("weft.attention.core.sparsity_patterns:PATTERNS", spec, causal) for spec in specs]


def neighbours(x: Tensor, chunk: int, before: int, after: int) -> Tensor:
    """x [B, n, …] → [B, C, before + chunk + after, …]: each chunk of tokens with its surroundings, zeros beyond the ends."""
    fill = -x.size(1) % chunk
    if before or after or fill:
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (before, fill + after))
    return x.unfold(1, before + chunk + after, chunk).movedim(-1, 2)


def for_each_group(x: Tensor, extent: int, chunk: int) -> Tensor:
    """x [B, S, …] → [B, C, S, …]: the same for each chunk of `extent` queries."""
    return x[:, None].expand(-1, -(-extent // chunk), *[-1] * (x.dim() - 1))


def margin(count: int) -> int:
    """`count` rounded up to a multiple of eight, which kernels prefer."""
    return -(-count // 8) * 8


class LearnedTokens(nn.Module):
    """E learned global tokens of an encoder, which come before every sentence inside the mechanism, and not in its output.

    First they attend to the sentence, g = e + attention(e, [e; x]). Then the tokens attend to [g; x] by their pattern, in which
    the first E positions are global. So any two tokens are two steps apart within one layer.
    """

    def __init__(self, site: Site, count: int) -> None:
        super().__init__()
        if site.use == "causal":
            raise ConfigError(
                "learned: extra tokens see the whole sentence, so a decoder cannot have them; set it to 0 there, and use tokens"
            )
        self.count = count
        self.vectors = nn.Parameter(torch.randn(count, site.dim))

    def run(self, heads: MultiHead, x: Tensor, layout: Layout | None, need_weights: bool) -> Attended:
        """As `Attention.run`. The weights leave out the extra tokens."""
        if layout is not None and layout.packed:
            rows, own = unpack(x, layout)
            return Attended(repack(self._run(heads, rows, own, False).context, layout))
        return self._run(heads, x, layout, need_weights)

    def _run(self, heads: MultiHead, x: Tensor, layout: Layout | None, need_weights: bool) -> Attended:
        longer = None if layout is None else layout.cached(("extra tokens", self.count), lambda: _prepend(layout, self.count))
        extra = self.vectors.to(x.dtype).expand(x.size(0), -1, -1)
        q, k, v = heads.own(torch.cat([extra, x], 1))
        ok = None if longer is None else longer.mask[:, None, None]
        dropout = heads.site.dropout if self.training else 0.0
        seen, _ = mix(q[:, :, : self.count], k, v, ok, dropout, False)
        both = torch.cat([extra + heads.out(join_heads(seen)).to(x.dtype), x], 1)
        attended = heads.run(both, ConcatenatedKeyValues(), both, longer, need_weights)
        weights = None if attended.weights is None else attended.weights[:, :, self.count :, self.count :]
        return replace(attended, context=attended.context[:, self.count :], state=None, weights=weights)


def _prepend(layout: Layout, count: int) -> Layout:
    """The layout of a padded batch with `count` more tokens before each row."""
    segments = F.pad(layout.segments, (count, 0), value=1)
    positions = torch.arange(segments.size(1), device=segments.device).expand(segments.shape)
    known = None if layout.known is None else tuple(count + each for each in layout.known)
    return Layout(segments, positions, None, layout.longest + count, known)
