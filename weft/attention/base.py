"""The one interface of every attention mechanism.

Shapes: B rows · T query positions · S key positions · H heads · D the width of the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from weft.batch import Layout
from weft.errors import ConfigError
from weft.state import State

Use = Literal["encoder", "causal", "cross"]


@dataclass(frozen=True)
class Site:
    """The place a mechanism is built for: what the model tells it, as opposed to what a user sets.

    dim is the width of queries and of what comes back, memory that of the keys' source (cross only), dropout the share of
    weights dropped in training.
    """

    use: Use
    dim: int
    heads: int = 1
    memory: int | None = None
    dropout: float = 0.0

    @property
    def memory_dim(self) -> int:
        return self.dim if self.memory is None else self.memory

    @property
    def head_dim(self) -> int:
        if self.dim % self.heads:
            raise ConfigError(
                f"a width of {self.dim} cannot be shared by {self.heads} heads; choose heads that divide the width"
            )
        return self.dim // self.heads


@dataclass
class Attended:
    """What a mechanism gives back.

    context [B, T, context_width], as wide as the mechanism says; the model that holds it makes it fit · weights [B, H, T, S]
    where asked for and where the mechanism has them · terms: raw quantities [B, T] by name, in training only, for the
    task to mask, weigh and sum.
    """

    context: Tensor
    state: State = None
    weights: Tensor | None = None
    terms: dict[str, Tensor] = field(default_factory=dict)


def add_terms(terms: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    """Adds to `terms` those of one more layer, name by name."""
    for name, value in more.items():
        terms[name] = terms[name] + value if name in terms else value


class Facts(nn.Module):
    """What configuration checks, tests and pictures read of a mechanism. Never a switch for control flow elsewhere.

    A class declares its facts; an option that changes one (rotary positions give keys an order) changes it in the instance.
    packs: it works on packed rows · packs_square: all pairs of such a row are formed, so it is right but slow there.
    `instead` says for a use that cannot be why it cannot, and what to take.
    """

    paper: ClassVar[str] = ""
    cost: ClassVar[str] = "n²"
    uses: ClassVar[frozenset[str]] = frozenset()
    instead: ClassVar[dict[str, str]] = {}
    weights_sum: Literal["one", "at most one"] | None = None
    reach: Literal["all", "pattern", "data"] = "all"
    ignores_key_order: bool = False
    packs: bool = False
    packs_square: bool = False
    terms: frozenset[str] = frozenset()

    def __init__(self, site: Site) -> None:
        super().__init__()
        if site.use not in self.uses:
            name = type(self).__name__
            why = f": {self.instead[site.use]}" if site.use in self.instead else ""
            can = " or ".join(sorted(self.uses))
            raise ConfigError(f"{name} cannot serve as {site.use} attention; it can serve as {can}{why}")
        self.site = site
        self.max_length: int | None = None
        self.context_width: int = site.dim

    def sees(self, length: int) -> Tensor:
        """[length, length] bool: which keys each query may look at, by position alone. Only where reach is "pattern"."""
        return torch.ones(length, length, dtype=torch.bool)

    def refresh(self, generator: torch.Generator) -> None:
        """Redraws or updates buffers. The trainer calls it after each step; nothing else changes a buffer."""


class Attention(Facts, ABC):
    """Queries look at keys. One method serves a whole sequence, a piece of it, and a single step.

    Self-use always appends: `attention(x, attention.start(rows=B), append=x)`, and `append` is the query itself. Only cross
    passes memory to `start`; for causal use, memory given to `start` is an earlier segment of the same sequence. `layout`
    describes queries and appended tokens alike; a token that is not `ok` was never fed. The state is consumed: to
    branch, select first.
    """

    @abstractmethod
    def start(
        self, memory: Tensor | None = None, layout: Layout | None = None, *, rows: int = 1, room: int | None = None
    ) -> State:
        """A state to begin with. `room` asks for a store of fixed size that grows only by `weft.state.grow`."""

    @abstractmethod
    def forward(
        self,
        query: Tensor,
        state: State,
        *,
        append: Tensor | None = None,
        layout: Layout | None = None,
        need_weights: bool = False,
    ) -> Attended:
        """What the queries [B, T, D] find. Weights are computed only if asked for."""


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, H·d] → [B, H, T, d]."""
    rows, extent, _ = x.shape
    return x.view(rows, extent, heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, H, T, d] → [B, T, H·d]."""
    return x.transpose(1, 2).flatten(2)
