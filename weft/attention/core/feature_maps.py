"""Attention with feature maps in place of a softmax: projections, sums and their flow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site
from weft.attention.core.multihead import Projections
from weft.attention.core.prefix_sums import MemorySums, Sums, Unnormalized, divide, fade, look_at, look_back, sum_up
from weft.data.batch import Layout
from weft.layers.decoder_state import State, spread

Draw = Callable[[torch.Generator | None], Tensor]
"""Draws the numbers, in float32, on the CPU; without a generator from torch's global one."""


class ScaledFeatures(NamedTuple):
    """φ(x) [..., H, T, M] as phi · exp(log_scale [..., H, T]), or as phi alone if log_scale is None.

    phi has the precision of x and is contiguous.
    """

    phi: Tensor
    log_scale: Tensor | None = None


class FeatureAttention(Attention, ABC):
    """Σ φ(q)·φ(k) v / Σ φ(q)·φ(k): the kernel φ(q)·φ(k) replaces exp(q·k), and sums over keys are computed once.

    Products use the precision of the projections, or float32 instead of float16, whose range is too small for sums.
    """

    cost = "n"
    uses = frozenset({"encoder", "causal", "cross"})
    ignores_key_order = True
    weighted = False
    """Whether keys have log weights."""
    bounded = False
    """Whether `least` is above 0."""

    def __init__(self, site: Site, *, features: int, bias: bool) -> None:
        super().__init__(site)
        self.heads = Projections(site, bias=bias)
        self.features = features

    @abstractmethod
    def phi(self, x: Tensor) -> ScaledFeatures:
        """The features of queries or keys [..., H, T, D], or of both at once if they come from the same tokens."""

    def least(self) -> Tensor | None:
        """The minimum of the kernel that the features estimate, [H, 1], if it is above 0: smaller estimates are errors."""
        return None

    def gates(self, x: Tensor) -> Tensor | None:
        """The logits [B, H, T] of gates that let the past fade, if there are any."""
        return None

    def read(self, memory: Tensor, layout: Layout | None) -> State:
        k, v = (_precise(x) for x in self.heads.keys_values(memory))
        with torch.autocast(memory.device.type, enabled=False):
            return self._sum_up(self.phi(k), v, layout)

    def begin(self, rows: int, room: int | None) -> State:
        like, sizes = self.heads.out.weight, (self.site.heads, self.features, self.heads.width)
        return Sums.nothing(rows, *sizes, like, weighted=self.weighted, massive=self.bounded)

    def extend(self, x: Tensor, state: State, layout: Layout | None) -> State:
        return self._append(x, state, layout)[1]

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        if append is None:
            q = _precise(self.heads.queries(query))
            with torch.autocast(query.device.type, enabled=False):
                seen = self._look(self.phi(q).phi, state)
        else:
            seen, state = self._append(append, state, layout)
        context = divide(seen, self.heads.width, self.least())
        return Attended(self.heads.join(context), state)

    def _append(self, x: Tensor, state: Sums | None, layout: Layout | None) -> tuple[Unnormalized, Sums | None]:
        both, v = (_precise(part) for part in self.heads.paired(x))
        gates = self.gates(x)
        with torch.autocast(x.device.type, enabled=False):
            phi, scales = self.phi(both)
            (q, k), log_scale = phi.unbind(), None if scales is None else scales[1]
            if state is None:
                return self._look(q, self._sum_up(ScaledFeatures(k, log_scale), v, layout)), None
            ok = None if layout is None else layout.ok
            log_weight, faded = (log_scale, None) if gates is None else fade(gates, ok)
            seen, state = look_back(q, k, v, state, log_weight, ok)
            return seen, state if faded is None else state.fade(faded)

    def _sum_up(self, keys: ScaledFeatures, v: Tensor, layout: Layout | None) -> MemorySums:
        return sum_up(keys.phi, v, keys.log_scale, None if layout is None else layout.ok, self.bounded)

    def _look(self, q: Tensor, sums: MemorySums) -> Unnormalized:
        rows = q.size(0)
        mass = None if sums.mass is None else spread(sums.mass, rows)
        return look_at(q, MemorySums(spread(sums.values, rows), mass))


class RedrawnBuffer(nn.Module):
    """The result of `draw`, redrawn about every `every` steps of training (0: never).

    The buffer holds the bits of float32 numbers as integers, so that neither averaging of checkpoints nor half precision
    changes them: the mean of several draws would be too short.
    """

    bits: Tensor

    def __init__(self, draw: Draw, every: int) -> None:
        super().__init__()
        self.draw, self.every = draw, every
        self.register_buffer("bits", draw(None).view(torch.int32))

    def forward(self) -> Tensor:
        return self.bits.view(torch.float32)

    def redraw(self, generator: torch.Generator) -> None:
        """Redraws with probability 1 / every. No counter is needed, so a resumed run redraws at the same steps."""
        if self.every and torch.rand((), generator=generator).item() * self.every < 1:
            self.bits.copy_(self.draw(generator).view(torch.int32))


def _precise(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float16 else x
