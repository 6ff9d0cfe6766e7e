"""Attention at a linear cost: the linear Transformer, and efficient attention (softmax over channels and over positions)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.attention.base import Attended, Attention, Site, join_heads
from weft.attention.core.dot_product import PAIRS, record_context
from weft.attention.core.feature_map_steps import NOTHING, up_to_own
from weft.attention.core.feature_maps import (
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
from weft.layers.linear_norm_dropout import accumulation_dtype
from weft.layers.step_recorder import record, recording


class LinearAttention(FeatureAttention):
    """φ(Q)(φ(K)ᵀV) / φ(Q)Σφ(K) with φ(x) = elu(x) + 1; in causal use a recurrence with a state of constant size.

    bias: whether the projections have a bias
    """

    paper = "Katharopoulos et al. 2020"

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        super().__init__(site, features=site.head_dim, bias=bias)

    def phi(self, x: Tensor) -> ScaledFeatures:
        return ScaledFeatures(_EluPlusOne.apply(x))

    def record_phi(self, side: str, x: Tensor, found: ScaledFeatures) -> None:
        axes = f"row head {side} feature"
        record(f"{side} features", found.phi, axes, "exp(-relu(-x)) + relu(x)", self, x=(x, axes))

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
    """The past in float32 at least. values [B, H, D, D]: per key channel, the mean of values weighted by exp(key) · level
    [B, H, D]: the logarithm of the sum of these weights."""

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
        joint = self.heads.joint_key_value(memory, values)
        if recording():
            self.heads.record_heads(("keys", "values"), memory, self.heads.key_value, joint, self)
        return self._means(*self.heads.halves(joint), layout)

    def begin(self, rows: int, room: int | None) -> State:
        weight, width = self.heads.out.weight, self.heads.width
        zeros = torch.zeros(rows, self.site.heads, width, width, device=weight.device)
        return RunningMeans(zeros, torch.full_like(zeros[..., 0], NOTHING))

    def extend(self, x: Tensor, state: State, layout: Layout | None) -> State:
        return self._recur(*self.heads.own(x), state, layout)[1]

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        if append is None:
            q = self.heads.queries(query)
            if recording():
                self.heads.record_heads(("queries",), query, self.heads.query, join_heads(q))
            return Attended(self.heads.join(self._mix(q, state)), state)
        q, k, v = self.heads.own(append)
        if recording():
            joint = torch.cat([join_heads(part) for part in (q, k, v)], -1)
            self.heads.record_heads(("queries", "keys", "values"), append, self.heads.query_key_value, joint)
        if self.site.use == "encoder":
            context = self._mix(q, self._means(k, v, layout))
        else:
            fresh, (context, after) = not state.values.any(), self._recur(q, k, v, state, layout)
            state = after
            if recording() and fresh:
                _record_pairs(q, k, v, layout, context)
        return Attended(self.heads.join(context), state)

    def _means(self, k: Tensor, v: Tensor, layout: Layout | None) -> MemorySums:
        """The mean of all real values for each key channel."""
        k, v = _real(k, v, layout)
        # A softmax over the last axis is several times faster on a GPU than over any other.
        weights = k.transpose(-1, -2).softmax(-1).to(v.dtype)
        means = weights @ v
        if recording():
            axes, cells = "row head feature key", "row head feature channel"
            operands = {"k": (k, "row head key feature")}
            record("weights of channels", weights, axes, "softmax(k, key)", self, **operands)
            record("means", means, cells, "sum(w * v, key)", self, w=(weights, axes), v=(v, "row head key channel"))
        return MemorySums(means)

    def _mix(self, q: Tensor, sums: MemorySums) -> Tensor:
        shares, means = q.softmax(-1).to(sums.values.dtype), spread(sums.values, q.size(0))
        context = shares @ means
        if recording():
            axes, cells = "row head query feature", "row head feature channel"
            record("shares of channels", shares, axes, "softmax(q, feature)", q=(q, axes))
            operands = {"p": (shares, axes), "m": (means, cells)}
            record("context", context, "row head query channel", "sum(p * m, feature)", **operands)
        return context

    def _recur(self, q: Tensor, k: Tensor, v: Tensor, past: RunningMeans, layout: Layout | None) -> tuple[Tensor, State]:
        """Computes chunk by chunk, as in `feature_maps`, but with one scale per key channel: the level of its past."""
        extent, dtype = q.size(2), q.dtype
        size = min(CHUNK, extent)
        k, v = _real(k, v, layout)
        q, k, v = (
            into_chunks(q.softmax(-1, accumulation_dtype(dtype)), size),
            into_chunks(k, size, NOTHING),
            into_chunks(v, size),
        )
        level = torch.logaddexp(k.flatten(2, 3).logcumsumexp(2), past.level[:, :, None]).view_as(k)
        begin, end = level[..., :1, :], level[..., -1:, :]
        levels = torch.cat([past.level[:, :, None], end[..., 0, :]], 2)
        with torch.autocast(q.device.type, enabled=False):
            # Factor exp(k − level) at the start of the chunk, so that neither factor overflows float32.
            scaled_q = (q * (begin - level).clamp_min(-MAX_EXPONENT).exp()).to(dtype)
            scaled_k = (k - begin).clamp_max(MAX_EXPONENT).exp().to(dtype)
            inside = (scaled_q @ scaled_k.transpose(-1, -2)).tril() @ v
            means = ((k - end).exp().to(dtype).transpose(-1, -2) @ v).to(levels.dtype)
            each = torch.cat([past.values[:, :, None], means], 2)
            run = accumulate(each.transpose(2, 3), levels.transpose(2, 3))[0].transpose(2, 3)
            before = (q * (levels[:, :, :-1, None] - level).exp()).to(dtype)
            context = inside + before @ run[:, :, :-1].to(dtype)
        return context.flatten(2, 3)[:, :, :extent], RunningMeans(run[:, :, -1].contiguous(), levels[:, :, -1].contiguous())


def _record_pairs(q: Tensor, k: Tensor, v: Tensor, layout: Layout | None, context: Tensor) -> None:
    """Records the context of queries q [B, H, T, D] that see the keys up to their own, all from the first token on."""
    axes, extent = "row head query feature", k.size(2)
    shares = q.softmax(-1)
    seen = up_to_own(k.size(0), extent, None if layout is None else layout.mask, k.device)[:, None, ..., None]
    means = k[:, :, None].expand(-1, -1, extent, -1, -1).masked_fill(~seen, -torch.inf).softmax(3)
    weights = torch.einsum("bhtd,bhtsd->bhts", shares, means)
    record("shares of channels", shares, axes, "softmax(q, feature)", q=(q, axes))
    operands = {"p": (shares, axes), "w": (means, "row head query key feature")}
    record("weights", weights, PAIRS, "sum(p * w, feature)", **operands)
    record_context(context, weights, v)


def _real(k: Tensor, v: Tensor, layout: Layout | None) -> tuple[Tensor, Tensor]:
    """Keys in float32 at least. Padding gets no weight in the softmax, and no value."""
    k = k.to(accumulation_dtype(k.dtype))
    if layout is None:
        return k, v
    here = layout.mask[:, None, :, None]
    return torch.where(here, k, NOTHING), torch.where(here, v, 0.0)
