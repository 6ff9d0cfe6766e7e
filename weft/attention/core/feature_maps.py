"""Attention with feature maps φ in place of a softmax, by sums over the keys, at a cost linear in the length.

The context of a query is Σ w φ(q)·φ(k) v / Σ w φ(q)·φ(k). The weight w = exp(log_weight) of a key carries what is too large or
too small for its features. Values are extended by ones, so that the same products give numerator and denominator. In causal use
tokens are cut into chunks: inside a chunk all pairs are formed, and all earlier chunks are one sum. A whole sequence thus takes
a few products, and a step takes a sum of constant size.

Products may be in half precision. Sums are in float32, and each has its own scale: it holds Σ exp(log_weight − scale) …, where
the scale is the largest log weight of the real tokens so far. Future tokens therefore never change a result.

Shapes: B rows · H heads · T queries · S keys · M features · D value width · W extended value width · N chunks of C tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site, join_heads
from weft.attention.core.feature_map_steps import NOTHING, Mixture, record_mixture, record_pairs, record_sums
from weft.attention.core.multihead import Projections
from weft.data.batch import Layout
from weft.layers.decoder_state import State, shared, spread
from weft.layers.kernels import widest_float
from weft.layers.linear_norm_dropout import accumulation_dtype
from weft.layers.step_recorder import recording

LEAST = 1e-30
"""The minimum of a norm. Where nothing was seen the quotient is 0, and its gradient stays finite."""


@dataclass
class RunningSums:
    """Sums over all tokens so far, in float32, each times exp(−scale).

    values [B, H, M, W] = Σ w φ(k)[v, 1, …]ᵀ · mass [B, H] = Σ w, None if not needed · scale [B, H], None if all w are 1.
    """

    values: Tensor
    mass: Tensor | None = None
    scale: Tensor | None = None

    @staticmethod
    def empty(rows: int, heads: int, features: int, width: int, like: Tensor, *, weighted: bool, mass: bool) -> RunningSums:
        sizes = rows, heads, features, extended_width(width)
        values = torch.zeros(sizes, device=like.device, dtype=accumulation_dtype(like.dtype))
        scale = values.new_full((rows, heads), NOTHING) if weighted else None
        return RunningSums(values, values.new_zeros(rows, heads) if mass else None, scale)

    def decayed(self, by: Tensor) -> RunningSums:
        """The same sums times exp(by [B, H])."""
        assert self.scale is not None
        return replace(self, scale=(self.scale + by).to(self.scale.dtype))


@dataclass
class MemorySums:
    """The sums of a whole source, with one row per source: values [G, H, M, W] · mass [G, H], None if not needed."""

    values: Tensor = shared()
    mass: Tensor | None = shared(default=None)


@dataclass(frozen=True)
class Unnormalized:
    """The weighted sums of queries before division: total [B, H, T, W] · mass [B, H, T] or [B, H, 1], the sum of w."""

    total: Tensor
    mass: Tensor | None


def extended_width(width: int) -> int:
    """W: the value width plus at least one, rounded up to a multiple of eight for fast products."""
    return width + 8 - width % 8


def sum_up(k: Tensor, v: Tensor, log_weight: Tensor | None, mask: Tensor | None, with_mass: bool) -> MemorySums:
    """The sums over all real keys: features k [B, H, S, M], v [B, H, S, D], log_weight [B, H, S], mask [B, S]."""
    rows, heads, extent, _ = k.shape
    k, v, log_weight = _extended(k, v, log_weight, mask)
    mass = None
    if log_weight is not None:
        w = (log_weight - log_weight.detach().amax(2, keepdim=True)).exp()
        v, mass = v * w[..., None].to(v.dtype), w.sum(2) if with_mass else None
    elif with_mass:
        mass = _count(k.new_zeros(rows, heads, dtype=accumulation_dtype(k.dtype)), extent, mask)[..., -1]
    values = torch.bmm(k.flatten(0, 1).transpose(-1, -2), v.flatten(0, 1))
    return MemorySums(values.unflatten(0, (rows, heads)), mass)


def attend_sums(q: Tensor, sums: MemorySums) -> Unnormalized:
    """Attends from every query, features [B, H, T, M], to a whole source."""
    rows = q.size(0)
    total = torch.bmm(q.flatten(0, 1), spread(sums.values, rows).to(q.dtype).flatten(0, 1))
    return Unnormalized(total.unflatten(0, q.shape[:2]), None if sums.mass is None else spread(sums.mass, rows)[..., None])


def attend_prefix(
    q: Tensor, k: Tensor, v: Tensor, sums: RunningSums, log_weight: Tensor | None = None, mask: Tensor | None = None
) -> tuple[Unnormalized, RunningSums]:
    """Attends from every query to the keys up to its own and to `sums`; also returns the sums after these tokens.

    q, k [B, H, T, M] features · v [B, H, T, D] · log_weight [B, H, T] · mask [B, T], False for tokens that were never fed.
    """
    rows, heads, extent, features = q.shape
    size = min(extent, 64 if features * v.size(-1) <= 64 * 64 else 128)
    k, v, log_weight = _extended(k, v, log_weight, mask)
    q, k, v = (into_chunks(x, size).flatten(0, 2) for x in (q, k, v))
    inside = torch.bmm(q, k.transpose(-1, -2))
    if log_weight is None:
        inside, summed, weights = inside.tril(), v, None
    else:
        weights = _Weights.of(into_chunks(log_weight[..., None], size, NOTHING)[..., 0], sums)
        inside = inside * weights.pairs.to(q.dtype).flatten(0, 2)
        summed = v * weights.own.to(v.dtype).flatten(0, 2)[..., None]
    each = torch.bmm(k.transpose(-1, -2), summed).view(rows, heads, -1, features * v.size(-1))
    before, values, scale = _carry(sums.values.flatten(-2), each, None if weights is None else weights.scales)
    before, context = before.to(q.dtype).reshape(-1, features, v.size(-1)), torch.bmm(inside, v)
    if weights is None:
        context, mass = torch.baddbmm(context, q, before), sums.mass
        mass = None if mass is None else _count(mass, extent, mask)
    else:
        context = torch.addcmul(context, torch.bmm(q, before), weights.past.to(q.dtype).flatten(0, 2)[..., None])
        mass = None if sums.mass is None else weights.mass(sums.mass)
    seen = Unnormalized(context.view(rows, heads, -1, v.size(-1))[:, :, :extent], None if mass is None else mass[:, :, :extent])
    return seen, RunningSums(values.view_as(sums.values), None if mass is None else mass[..., -1], scale)


def gated_weights(gates: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """S_t = g_t S_{t−1} + (1 − g_t) … with g = σ(gates [B, H, T]): the log weights of keys, and the total decay [B, H].

    In float64, since only the differences of sums over thousands of tokens matter.
    """
    gates = gates.to(widest_float(gates.device))
    kept = F.logsigmoid(gates)
    if mask is not None:
        kept = torch.where(mask[:, None], kept, 0.0)
    total = kept.cumsum(-1)
    return F.logsigmoid(-gates) - total, total[..., -1].detach()


@dataclass(frozen=True)
class _Weights:
    """The weights of keys.

    own [B, H, N, C]: of a key in the sum of its chunk · pairs [B, H, N, C, C]: of a key for a query · past [B, H, N, C]: of
    everything before the chunk · scales [B, H, N + 1]: of the initial sums and of each chunk.
    """

    own: Tensor
    pairs: Tensor
    past: Tensor
    scales: Tensor

    @staticmethod
    def of(log_weight: Tensor, sums: RunningSums) -> _Weights:
        """Scales are running maxima. They cancel when the result is divided, so they have no gradient."""
        assert sums.scale is not None
        high = log_weight.detach().cummax(-1).values
        scales = torch.cat([sums.scale[..., None].to(high.dtype), high[..., -1]], -1)
        before = scales.cummax(-1).values[..., :-1, None]
        top, last = torch.maximum(high, before), high[..., -1:]
        # Subtract before rounding: log weights themselves may be large.
        own, level = (log_weight - last).to(sums.scale.dtype), (top - last).to(sums.scale.dtype)
        later = torch.ones(own.size(-1), own.size(-1), dtype=torch.bool, device=own.device).triu(1)
        pairs = (own[..., None, :] - level[..., None]).masked_fill(later, -torch.inf).exp()
        own = torch.where(log_weight > NOTHING / 2, own.exp(), 0.0)
        return _Weights(own, pairs, (before - top).to(own.dtype).exp(), scales)

    def mass(self, first: Tensor) -> Tensor:
        """[B, H, N·C]: the sum of weights up to each query, given the mass [B, H] of earlier tokens."""
        before, _, _ = _carry(first[..., None], self.own.sum(-1)[..., None], self.scales)
        return (self.pairs.sum(-1) + self.past * before).flatten(2)


def _count(first: Tensor, extent: int, mask: Tensor | None) -> Tensor:
    """[B, H, T]: the number of real keys up to each query, after the `first` [B, H]."""
    return first[..., None] + (torch.arange(1, extent + 1, device=first.device) if mask is None else mask.cumsum(1)[:, None])


def _carry(first: Tensor, each: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The sums before each chunk [B, H, N, X], the sum after the last one [B, H, X], and its scale [B, H].

    first [B, H, X] precedes all chunks, and each [B, H, N, X] are their own sums; results have the precision of `first`.
    """
    if scales is None and each.size(2) == 1:  # a step
        return first[:, :, None], first + each[:, :, 0], None
    run, top = accumulate(torch.cat([first[:, :, None], each], 2), scales)
    before, after = run.split([each.size(2), 1], 2)
    return before, after[:, :, 0].contiguous(), None if top is None else top[..., -1].to(first.dtype)


def accumulate(sums: Tensor, scale: Tensor | None, group: int = 128) -> tuple[Tensor, Tensor | None]:
    """Running sums of sums [..., N, W], each representing itself times exp(scale [..., N]); also returns their scales.

    Scales are logarithms: Σ_{i ≤ j} sums_i exp(scale_i − top_j), with the running maximum top. Up to `group` sums are added by
    one product, more in groups.
    """
    if scale is None:
        return sums.cumsum(-2), None
    count = sums.size(-2)
    if count <= group:
        top = scale.cummax(-1).values
        later = torch.ones(count, count, dtype=torch.bool, device=sums.device).triu(1)
        share = (scale[..., None, :] - top[..., None]).masked_fill(later, -torch.inf).exp()
        return share.to(sums.dtype) @ sums, top
    grouped, scales = into_chunks(sums, group), into_chunks(scale[..., None], group, NOTHING)[..., 0]
    inner, level = accumulate(grouped, scales, group)
    assert level is not None
    outer, above = accumulate(inner[..., -1, :], level[..., -1], group)
    assert above is not None
    outer, above = F.pad(outer, (0, 0, 1, 0))[..., :-1, None, :], F.pad(above, (1, 0), value=NOTHING)[..., :-1, None]
    top = torch.maximum(level, above)
    run = inner * (level - top).exp()[..., None].to(sums.dtype) + outer * (above - top).exp()[..., None].to(sums.dtype)
    return run.flatten(-3, -2)[..., :count, :], top.flatten(-2)[..., :count]


def divide(total: Tensor, width: int, floor: Tensor | None = None) -> Tensor:
    """The context [B, H, T, D] of weighted sums [B, H, T, W]; 0 where a query saw nothing.

    floor [B, H, T or 1, 1]: the smallest norm that is not an estimation error, if it is above 0.
    """
    return _Quotient.apply(total, width, floor)


class _Quotient(torch.autograd.Function):
    """total[..., :D] / max(total[..., D], floor), for total [B, H, T, W], and floor [B, H, T or 1, 1] or None.

    Written by hand, since autograd takes three times as many operations, most of them over all values.
    """

    @staticmethod
    def forward(ctx: Any, total: Tensor, width: int, floor: Tensor | None) -> Tensor:
        norm = total[..., width : width + 1]
        ctx.low = None if floor is None else norm < floor
        norm = norm.clamp_min(LEAST) if floor is None else norm.maximum(floor).clamp_min_(LEAST)
        rows, heads, extent, _ = ctx.shape = total.shape
        ctx.floor = None if floor is None else floor.shape
        # Memory layout of joined heads.
        context = total.new_empty(rows, extent, heads, width).transpose(1, 2)
        torch.div(total[..., :width], norm, out=context)
        ctx.save_for_backward(context, norm)
        return context

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor | None]:
        context, norm = ctx.saved_tensors
        width, slope = context.size(-1), norm.new_empty(ctx.shape)
        values = torch.div(gradients[0], norm, out=slope[..., :width])
        along = torch.sum(values * context, -1, keepdim=True).neg_()
        floor = None if ctx.low is None else (along * ctx.low).sum_to_size(ctx.floor)
        slope[..., width : width + 1] = along if ctx.low is None else along.masked_fill_(ctx.low, 0.0)
        slope[..., width + 1 :] = 0
        return slope, None, floor


def into_chunks(x: Tensor, size: int, value: float = 0.0) -> Tensor:
    """[..., T, W] → [..., N, size, W], padded with `value`."""
    missing = -x.size(-2) % size
    if missing:  # F.pad by 0 would copy
        x = F.pad(x, (0, 0, 0, missing), value=value)
    return x.unflatten(-2, (-1, size))


def _extended(k: Tensor, v: Tensor, log_weight: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys, values [B, H, T, W] extended by ones, and log weights. Padding adds nothing, whatever it contains."""
    if mask is not None:
        here = mask[:, None, :, None]
        k, v = torch.where(here, k, 0.0), torch.where(here, v, 0.0)
        log_weight = None if log_weight is None else torch.where(here[..., 0], log_weight, NOTHING)
    ones = v.new_ones(()).expand(*v.shape[:-1], extended_width(v.size(-1)) - v.size(-1))
    return k, torch.cat([v, ones], -1), log_weight


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
    weighted = False  # whether keys have log weights
    bounded = False  # whether `least` is above 0

    def __init__(self, site: Site, *, features: int, bias: bool) -> None:
        super().__init__(site)
        self.heads = Projections(site, bias=bias)
        self.features = features

    @abstractmethod
    def phi(self, x: Tensor) -> ScaledFeatures:
        """The features of queries or keys [..., H, T, D], or of both at once if they come from the same tokens."""

    @abstractmethod
    def record_phi(self, side: str, x: Tensor, found: ScaledFeatures) -> None:
        """Records how the features of x [B, H, T, D] are found. side: query or key."""

    def least(self) -> Tensor | None:
        """The minimum of the kernel that the features estimate, [H, 1], if it is above 0: smaller estimates are errors."""
        return None

    def gates(self, x: Tensor) -> Tensor | None:
        """The logits [B, H, T] of gates that let the past fade, if there are any."""
        return None

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> State:
        joint = self.heads.joint_key_value(memory, values)
        k, v = (_precise(x) for x in self.heads.halves(joint))
        if recording():
            self.heads.record_heads(("keys", "values"), memory, self.heads.key_value, joint, self)
        with torch.autocast(memory.device.type, enabled=False):
            return self._sum_up(k, self.phi(k), v, layout)

    def begin(self, rows: int, room: int | None) -> State:
        like, sizes = self.heads.out.weight, (self.site.heads, self.features, self.heads.width)
        return RunningSums.empty(rows, *sizes, like, weighted=self.weighted, mass=self.bounded)

    def extend(self, x: Tensor, state: State, layout: Layout | None) -> State:
        return self._append(x, state, layout)[1]

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        if append is None:
            q = _precise(self.heads.queries(query))
            if recording():
                self.heads.record_heads(("queries",), query, self.heads.query, join_heads(q))
            with torch.autocast(query.device.type, enabled=False):
                context = self._attend_sums(q, self.phi(q), state)
        else:
            context, state = self._append(append, state, layout)
        return Attended(self.heads.join(context), state)

    def _attend_sums(self, q: Tensor, phi: ScaledFeatures, sums: MemorySums) -> Tensor:
        """The context of queries q with features phi [B, H, T, M] from the sums over a whole source."""
        seen = attend_sums(phi.phi, sums)
        mixture = self._divide(seen)
        if recording():
            self.record_phi("query", q, phi)
            record_mixture(self, phi.phi, spread(sums.values, q.size(0)), mixture)
        return mixture.context

    def _append(self, x: Tensor, state: RunningSums | None, layout: Layout | None) -> tuple[Tensor, RunningSums | None]:
        """The context of tokens x, and the state after them."""
        both, v = (_precise(part) for part in self.heads.paired(x))
        if recording():
            joint = torch.cat([join_heads(part) for part in (*both, v)], -1)
            self.heads.record_heads(("queries", "keys", "values"), x, self.heads.query_key_value, joint, self)
        gates = self.gates(x)
        with torch.autocast(x.device.type, enabled=False):
            phi, scales = self.phi(both)
            queries, keys = (ScaledFeatures(part, None if scales is None else scales[i]) for i, part in enumerate(phi.unbind()))
            if state is None:
                return self._attend_sums(both[0], queries, self._sum_up(both[1], keys, v, layout)), None
            mask = None if layout is None else layout.mask
            log_weight, decay = (keys.log_scale, None) if gates is None else gated_weights(gates, mask)
            seen, after = attend_prefix(queries.phi, keys.phi, v, state, log_weight, mask)
            mixture = self._divide(seen)
            if recording() and not state.values.any():
                self.record_phi("query", both[0], queries)
                self.record_phi("key", both[1], keys)
                record_pairs(self, queries.phi, keys.phi, log_weight, v, mask, mixture)
            return mixture.context, after if decay is None else after.decayed(decay)

    def _sum_up(self, k: Tensor, keys: ScaledFeatures, v: Tensor, layout: Layout | None) -> MemorySums:
        mask = None if layout is None else layout.mask
        sums = sum_up(keys.phi, v, keys.log_scale, mask, self.bounded)
        if recording():
            self.record_phi("key", k, keys)
            record_sums(self, *keys, v, mask, sums.values)
        return sums

    def _divide(self, seen: Unnormalized) -> Mixture:
        least, floor = self.least(), None
        if least is not None:
            assert seen.mass is not None
            floor = (seen.mass * least).to(seen.total.dtype)[..., None]
        return Mixture(seen.total, floor, divide(seen.total, self.heads.width, floor))


class RedrawnBuffer(nn.Module):
    """The result of `draw`, float32 numbers on the CPU, redrawn about every `every` steps of training (0: never).

    `draw` takes a generator; None is torch's global one. The buffer holds the bits of its numbers as integers, so that neither
    averaging of checkpoints nor half precision changes them: the mean of several draws would be too short.
    """

    bits: Tensor

    def __init__(self, draw: Callable[..., Tensor], every: int) -> None:
        super().__init__()
        self.draw, self.every = draw, every
        self.register_buffer("bits", draw(generator=None).view(torch.int32))

    def forward(self) -> Tensor:
        return self.bits.view(torch.float32)

    def refresh(self, generator: torch.Generator) -> None:
        """Redraws with probability 1 / every. No counter is needed, so a resumed run redraws at the same steps."""
        if self.every and torch.rand((), generator=generator).item() * self.every < 1:
            self.bits.copy_(self.draw(generator=generator).view(torch.int32))


def _precise(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float16 else x
