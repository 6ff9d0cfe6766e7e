"""Patterns: which keys a query may look at by where both stand, and a short way to them.

`allows` says exactly which pairs of positions may look at each other. For long sequences queries are taken in groups, and
`keys` gives every group the few keys that any of its queries may look at; those that are not allowed are then masked. So a way
that gives too many keys costs time, and one that gives too few is caught by the tests against the masked full matrix.

Shapes: B rows · n tokens · C groups · T queries of a group · S keys of a group · … whatever a token has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.config.registry import Among, build

PATTERNS = {
    "full": "weft.attention.pattern:Everything",
    "local": "weft.attention.local:Local",
    "strided": "weft.attention.strided:Strided",
    "fixed": "weft.attention.fixed:Fixed",
    "global": "weft.attention.global_:Global",
    "random": "weft.attention.random_:Random",
    "longformer": "weft.attention.longformer:Longformer",
    "bigbird": "weft.attention.bigbird:BigBird",
}
"""What a head may look at. Each is an attention by itself too."""

PatternSpec = Annotated[dict[str, Any], Among("weft.attention.pattern:PATTERNS")]
"""A pattern in a configuration: its name, or its `kind` and options."""

SMALLEST = 64
"""Queries of a group are at least so many, where the pattern leaves the choice: smaller products do not pay."""

LARGEST = 1024
"""And at most so many."""


class Pattern(ABC):
    """A set of pairs of positions, equal to another if its settings are. The options are those of the attention of its name.

    insists    whether queries must be in groups of just `chunk`
    regroups   whether its groups are not of neighbours, so that it cannot share them with other patterns
    """

    insists: bool = False
    regroups: bool = False

    @abstractmethod
    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """bool, for positions whose shapes fit together. In causal use keys after the query are left out besides."""

    @abstractmethod
    def keys(self, x: Tensor, chunk: int) -> Tensor:
        """x [B, n, …] → [B, C, S, …]: for each group what its queries may look at; zeros where that is beyond the ends."""

    @property
    def chunk(self) -> int:
        """The most neighbours among the queries that should make a group."""
        return LARGEST

    @property
    def rows(self) -> int:
        """How many queries, the first ones, look at everything (in an encoder)."""
        return 0

    @property
    def span(self) -> tuple[int, int] | None:
        """(before, after) if all tokens at most so far before and after the query are seen and no others."""
        return None

    @property
    def parts(self) -> tuple[Pattern, ...]:
        """The simple patterns that this one joins."""
        return (self,)

    def split(self, x: Tensor, chunk: int) -> Tensor:
        """x [B, n, …] → [B, C, T, …]: queries in groups, filled up with zeros."""
        return neighbours(x, chunk, 0, 0)

    def join(self, x: Tensor, extent: int) -> Tensor:
        """[B, C, T, …] → [B, n, …], the way back."""
        return x.flatten(1, 2)[:, :extent]

    def sees(self, length: int, causal: bool) -> Tensor:
        """[length, length] bool."""
        place = torch.arange(length)
        seen = self.allows(place[:, None], place[None])
        return seen.tril() if causal else seen


class Union(Pattern):
    """What any of several patterns allows, in one softmax."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Pattern, ...]:
        """The simple patterns that this one joins."""

    @property
    def rows(self) -> int:
        return max(part.rows for part in self.parts)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return reduce(torch.logical_or, (part.allows(query, key) for part in self.parts))

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        return torch.cat([part.keys(x, chunk) for part in self.parts], 2)


@dataclass(frozen=True)
class Everything(Pattern):
    """Every token."""

    causal: bool

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones(torch.broadcast_shapes(query.shape, key.shape), dtype=torch.bool, device=key.device)

    def keys(self, x: Tensor, chunk: int) -> Tensor:
        return for_each_group(x, x.size(1), chunk)


def build_patterns(specs: list[dict[str, Any]], causal: bool) -> list[Pattern]:
    return [build("weft.attention.pattern:PATTERNS", spec, causal) for spec in specs]


def neighbours(x: Tensor, chunk: int, before: int, after: int) -> Tensor:
    """x [B, n, …] → [B, C, before + chunk + after, …]: each chunk of tokens with those around it, zeros beyond the ends."""
    fill = -x.size(1) % chunk
    if before or after or fill:
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (before, fill + after))
    return x.unfold(1, before + chunk + after, chunk).movedim(-1, 2)


def for_each_group(x: Tensor, extent: int, chunk: int) -> Tensor:
    """x [B, S, …] → [B, C, S, …]: the same for each chunk of `extent` queries."""
    return x[:, None].expand(-1, -(-extent // chunk), *[-1] * (x.dim() - 1))


def margin(count: int) -> int:
    """`count` rounded up, for kernels that want keys in eights."""
    return -(-count // 8) * 8
