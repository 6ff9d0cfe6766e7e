"""What attentions with features in place of a softmax have in common: projections, sums and their flow."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from weft.attention.base import Attended, Attention, Site
from weft.attention.projections import Projections
from weft.attention.running import MemorySums, Seen, Sums, divide, fade, look_at, look_back, sum_up
from weft.batch import Layout
from weft.state import State, spread


class Features(NamedTuple):
    """φ(x) [B, H, T, M] is phi · exp(log_scale [B, H, T]); without a log scale it is phi."""

    phi: Tensor
    log_scale: Tensor | None = None


class FeatureAttention(Attention):
    """Σ φ(q)·φ(k) v / Σ φ(q)·φ(k): the kernel φ(q)·φ(k) stands for exp(q·k), and sums over keys are formed once.

    Products are in the precision of the projections (or in float32 in place of float16, whose range is too small for sums).
    """

    cost = "n"
    uses = frozenset({"encoder", "causal", "cross"})
    ignores_key_order = True
    weighted = False
    """Whether keys have log weights."""

    def __init__(self, site: Site, *, features: int, bias: bool) -> None:
        super().__init__(site)
        self.heads = Projections(site, bias=bias)
        self.features = features

    @abstractmethod
    def phi(self, x: Tensor) -> Features:
        """Features of queries or keys [B, H, T, D], in float32 or in the precision of x."""

    def least(self) -> Tensor | float:
        """The least value of the kernel that the features stand for, [H, 1] or one for all: less is an error of estimation."""
        return 0.0

    def gates(self, x: Tensor) -> Tensor | None:
        """Logits [B, H, T] of gates that let the past fade, where there are any."""
        return None

    def start(
        self, memory: Tensor | None = None, layout: Layout | None = None, *, rows: int = 1, room: int | None = None
    ) -> State:
        if self.site.use == "cross":
            assert memory is not None
            k, v = self.heads.keys_values(memory)
            with torch.autocast(memory.device.type, enabled=False):
                return self._sum_up(k, v, layout)
        weight = self.heads.out.weight
        state = Sums.nothing(rows, self.site.heads, self.features, self.heads.width, weight, self.weighted)
        return state if memory is None else self._append(memory, state, layout)[1]

    def forward(
        self,
        query: Tensor,
        state: State,
        *,
        append: Tensor | None = None,
        layout: Layout | None = None,
        need_weights: bool = False,
    ) -> Attended:
        if append is None:
            q = self.heads.queries(query)
            with torch.autocast(query.device.type, enabled=False):
                seen = self._look(q, state)
        else:
            seen, state = self._append(append, state, layout)
        return Attended(self.heads.join(divide(seen, self.least())), state)

    def _append(self, x: Tensor, state: Sums, layout: Layout | None) -> tuple[Seen, Sums]:
        """Self-attention: to the past (causal) or to everything (encoder)."""
        q, k, v = self.heads.own(x)
        gates = self.gates(x)
        with torch.autocast(x.device.type, enabled=False):
            if self.site.use == "encoder":
                return self._look(q, self._sum_up(k, v, layout)), state
            keys, dtype, ok = self.phi(k), _precision(v), None if layout is None else layout.ok
            log_weight, faded = (keys.log_scale, None) if gates is None else fade(gates, ok)
            phi = self.phi(q).phi.to(dtype)
            seen, state = look_back(phi, keys.phi.to(dtype), v.to(dtype), state, log_weight, ok)
            return seen, state if faded is None else state.fade(faded)

    def _sum_up(self, k: Tensor, v: Tensor, layout: Layout | None) -> MemorySums:
        keys, dtype = self.phi(k), _precision(v)
        return sum_up(keys.phi.to(dtype), v.to(dtype), keys.log_scale, None if layout is None else layout.ok)

    def _look(self, q: Tensor, sums: MemorySums) -> Seen:
        rows = q.size(0)
        sums = MemorySums(spread(sums.values, rows), spread(sums.keys, rows), spread(sums.mass, rows))
        return look_at(self.phi(q).phi.to(_precision(q)), sums)


def _precision(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype == torch.float16 else x.dtype
