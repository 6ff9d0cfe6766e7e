"""Attention at a linear cost: the linear Transformer, and efficient attention (softmax over channels and over positions)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.attention.base import Attended, Attention, Site
from weft.attention.core.feature_maps import (
    NOTHING,
    FeatureAttention,
    MemorySums,
    ScaledFeatures,
    accumulate,
    extended_width,
    into_chunks,
)
from weft.attention.core.multihead import Projections
from weft.data.batch import Layout
from weft.layers.decoder_state import State, spread
from weft.layers.kernels.cpp_plan import Keys, PlanBuilder, Register


class LinearAttention(FeatureAttention):
    """φ(Q)(φ(K)ᵀV) / φ(Q)Σφ(K) with φ(x) = elu(x) + 1; in causal use a recurrence with a state of constant size.

    bias: whether the projections have a bias
    """

    paper = "Katharopoulos et al. 2020"

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        super().__init__(site, features=site.head_dim, bias=bias)

    def phi(self, x: Tensor) -> ScaledFeatures:
        return ScaledFeatures(_EluPlusOne.apply(x))

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        layers, heads = self.heads, self.site.heads
        if self.site.use == "cross":
            query, width = draft.linear(layers.query, x), extended_width(layers.width)
            return draft.linear(layers.out, draft.attend_memory_sums(query, heads, lambda sums: Keys(sums.values), width))
        joint = draft.linear(layers.query_key_value, x)
        return draft.linear(layers.out, draft.attend_sums(joint, heads, causal=self.site.use == "causal"))


class _EluPlusOne(torch.autograd.Function):
    """elu(x) + 1 = exp(min(x, 0)) + max(x, 0), rounded once in half precision. Saves φ alone: the derivative is min(φ, 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        phi = torch.clamp_max(x, 0.0, out=x.new_empty(x.shape)).exp_()
        phi += x.clamp_min(0.0)
        ctx.save_for_backward(phi)
        ctx.laid_out = torch.empty_like(x, device="meta")
        return phi

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (phi,) = ctx.saved_tensors
        slope = torch.empty_like(ctx.laid_out, device=phi.device)
        return torch.mul(gradients[0], phi.clamp_max(1.0), out=slope)


CHUNK = 64
MAX_EXPONENT = 60.0
"""The largest exponent inside a chunk: keys of a channel that exceed its first value by more than this count as equal."""


@dataclass
class RunningMeans:
    """The past in float32. values [B, H, D, D]: per key channel, the mean of values weighted by exp(key) · level [B, H, D]: the
    logarithm of the sum of these weights."""

    values: Tensor
    level: Tensor


class EfficientAttention(Attention):
    """softmax_d(Q) (softmax_n(K)ᵀ V): each key channel averages all values, and a query mixes the channels.

    The paper has no causal form. Here the softmax over positions covers those up to the query's own.

    bias: whether the projections have a bias
    """

    paper = "Shen et al. 2018"
    cost = "n"
    uses = frozenset({"encoder", "causal", "cross"})
    ignores_key_order = True

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        super().__init__(site)
        self.heads = Projections(site, bias=bias)

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> State:
        return _means(*self.heads.keys_values(memory, values), layout)

    def begin(self, rows: int, room: int | None) -> State:
        weight, width = self.heads.out.weight, self.heads.width
        zeros = torch.zeros(rows, self.site.heads, width, width, device=weight.device)
        return RunningMeans(zeros, torch.full_like(zeros[..., 0], NOTHING))

    def extend(self, x: Tensor, state: State, layout: Layout | None) -> State:
        return self._recur(*self.heads.own(x), state, layout)[1]

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        if append is None:
            context = _mix(self.heads.queries(query), state)
        elif self.site.use == "encoder":
            q, k, v = self.heads.own(append)
            context = _mix(q, _means(k, v, layout))
        else:
            context, state = self._recur(*self.heads.own(append), state, layout)
        return Attended(self.heads.join(context), state)

    def _recur(self, q: Tensor, k: Tensor, v: Tensor, past: RunningMeans, layout: Layout | None) -> tuple[Tensor, State]:
        """Computes chunk by chunk, as in `feature_maps`, but with one scale per key channel: the level of its past."""
        extent, dtype = q.size(2), q.dtype
        size = min(CHUNK, extent)
        k, v = _real(k, v, layout)
        q, k, v = into_chunks(q.softmax(-1, torch.float32), size), into_chunks(k, size, NOTHING), into_chunks(v, size)
        level = torch.logaddexp(k.flatten(2, 3).logcumsumexp(2), past.level[:, :, None]).view_as(k)
        begin, end = level[..., :1, :], level[..., -1:, :]
        levels = torch.cat([past.level[:, :, None], end[..., 0, :]], 2)
        with torch.autocast(q.device.type, enabled=False):
            # Factor exp(k − level) at the start of the chunk, so that neither factor overflows float32.
            scaled_q = (q * (begin - level).clamp_min(-MAX_EXPONENT).exp()).to(dtype)
            scaled_k = (k - begin).clamp_max(MAX_EXPONENT).exp().to(dtype)
            inside = (scaled_q @ scaled_k.transpose(-1, -2)).tril() @ v
            means = ((k - end).exp().to(dtype).transpose(-1, -2) @ v).float()
            each = torch.cat([past.values[:, :, None], means], 2)
            run = accumulate(each.transpose(2, 3), levels.transpose(2, 3))[0].transpose(2, 3)
            before = (q * (levels[:, :, :-1, None] - level).exp()).to(dtype)
            context = inside + before @ run[:, :, :-1].to(dtype)
        return context.flatten(2, 3)[:, :, :extent], RunningMeans(run[:, :, -1].contiguous(), levels[:, :, -1].contiguous())


def _means(k: Tensor, v: Tensor, layout: Layout | None) -> MemorySums:
    """The mean of all real values for each key channel."""
    k, v = _real(k, v, layout)
    # A softmax over the last axis is several times faster on a GPU than over any other.
    return MemorySums(k.transpose(-1, -2).softmax(-1).to(v.dtype) @ v)


def _mix(q: Tensor, means: MemorySums) -> Tensor:
    return q.softmax(-1).to(means.values.dtype) @ spread(means.values, q.size(0))


def _real(k: Tensor, v: Tensor, layout: Layout | None) -> tuple[Tensor, Tensor]:
    """Keys in float32. Padding gets no weight in the softmax, and no value."""
    k = k.float()
    if layout is None:
        return k, v
    here = layout.mask[:, None, :, None]
    return torch.where(here, k, NOTHING), torch.where(here, v, 0.0)
