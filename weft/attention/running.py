"""Attention by sums: what was seen is added up once, so that its cost grows with length and not with its square.

A key has features φ(k), and a query finds Σ w φ(q)·φ(k) v / Σ w φ(q)·φ(k). The weight w = exp(log_weight) of a key carries what
is too large or too small for the features themselves. In causal use tokens are cut into chunks: inside a chunk all pairs are
formed, and what came before is one sum, so a whole sequence takes a few products and a step a sum of constant size.

Products may be in half precision; sums are in float32, and each has a scale of its own: it holds Σ exp(log_weight − scale) …,
where the scale is the largest log weight of the past, real tokens only. So nothing to come can change what was found.

Shapes: B rows · H heads · T queries · S keys · M features · D width of a value · N chunks · C tokens of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.state import shared

NOTHING = -1e30
"""The log weight of what was never seen: finite, so that differences of it are."""


@dataclass
class Sums:
    """What was seen, in float32, each times exp(−scale).

    values [B, H, M, D] = Σ w φ(k)vᵀ · keys [B, H, M] = Σ w φ(k) · mass [B, H] = Σ w · scale [B, H], None where all w are 1.
    """

    values: Tensor
    keys: Tensor
    mass: Tensor
    scale: Tensor | None = None

    @staticmethod
    def nothing(rows: int, heads: int, features: int, width: int, like: Tensor, weighted: bool) -> Sums:
        zeros = torch.zeros(rows, heads, features, width, device=like.device, dtype=_wide(like.dtype))
        scale = torch.full_like(zeros[:, :, 0, 0], NOTHING) if weighted else None
        return Sums(zeros, zeros[..., 0].clone(), zeros[:, :, 0, 0].clone(), scale)

    def fade(self, by: Tensor) -> Sums:
        """The same sums times exp(by [B, H])."""
        assert self.scale is not None
        return replace(self, scale=(self.scale + by).to(self.scale.dtype))


@dataclass
class MemorySums:
    """The sums of a whole source, one row a source: values [G, H, M, D] · keys [G, H, M] · mass [G, H]."""

    values: Tensor = shared()
    keys: Tensor = shared()
    mass: Tensor = shared()


@dataclass(frozen=True)
class Seen:
    """What queries found, not yet divided: total [B, H, T, D] · norm [B, H, T] · mass [B, H, T] or [B, H, 1], the sum of w."""

    total: Tensor
    norm: Tensor
    mass: Tensor


def sum_up(k: Tensor, v: Tensor, log_weight: Tensor | None, ok: Tensor | None) -> MemorySums:
    """The sums of all real keys: features k [B, H, S, M], v [B, H, S, D], log_weight [B, H, S], ok [B, S]."""
    k, v, log_weight = _real(k, v, log_weight, ok)
    if log_weight is None:
        count = k.size(2) if ok is None else ok.sum(1)[:, None]
        mass = torch.zeros(k.shape[:2], device=k.device, dtype=_wide(k.dtype)) + count
    else:
        w = (log_weight - log_weight.detach().amax(2, keepdim=True)).exp()
        k, mass = k * w[..., None].to(k.dtype), w.sum(2)
    return MemorySums(_product(k.transpose(-1, -2), v, _wide(k.dtype)), k.sum(2, dtype=_wide(k.dtype)), mass)


def look_at(q: Tensor, sums: MemorySums) -> Seen:
    """Every query, features [B, H, T, M], against everything."""
    norm = (q @ sums.keys.to(q.dtype)[..., None])[..., 0].to(sums.keys.dtype)
    return Seen(q @ sums.values.to(q.dtype), norm, sums.mass[..., None])


def look_back(
    q: Tensor, k: Tensor, v: Tensor, sums: Sums, log_weight: Tensor | None = None, ok: Tensor | None = None
) -> tuple[Seen, Sums]:
    """Every query against the keys up to its own and against `sums`; and the sums after these tokens.

    q, k [B, H, T, M] features · v [B, H, T, D] · log_weight [B, H, T] · ok [B, T], False on tokens that were never fed.
    """
    extent, wide = q.size(2), _wide(q.dtype)
    size = min(extent, 64 if q.size(-1) * v.size(-1) <= 64 * 64 else 128)
    k, v, log_weight = _real(k, v, log_weight, ok)
    q, k, v = (cut(x, size) for x in (q, k, v))
    if log_weight is None:
        weights = _Weights.equal(k, ok, size)
        inside, summed = (q @ k.transpose(-1, -2)).tril(), k
    else:
        weights = _Weights.of(cut(log_weight[..., None], size, NOTHING)[..., 0], sums)
        inside = (q @ k.transpose(-1, -2)) * weights.pairs.to(q.dtype)
        summed = k * weights.own[..., None].to(k.dtype)
    chunks = Sums(_product(summed.transpose(-1, -2), v, wide), summed.sum(-2, dtype=wide), weights.mass)
    before, after = _carry(sums, chunks, weights.scales)
    total, norm = q @ before.values.to(q.dtype), (q @ before.keys.to(q.dtype)[..., None])[..., 0].to(wide)
    mass = before.mass[..., None].expand(norm.shape)
    if weights.past is not None:
        total, norm, mass = total * weights.past[..., None].to(total.dtype), norm * weights.past, mass * weights.past
    found = Seen(total + inside @ v, norm + inside.sum(-1, dtype=wide), mass + weights.within)
    return Seen(*(part.flatten(2, 3)[:, :, :extent] for part in (found.total, found.norm, found.mass))), after


def fade(gates: Tensor, ok: Tensor | None) -> tuple[Tensor, Tensor]:
    """S_t = g_t S_{t−1} + (1 − g_t) … with g = σ(gates [B, H, T]): log weights of keys, and by how much all fades, [B, H].

    In float64, since a sum over thousands of tokens is subtracted from another; the differences are what counts.
    """
    gates = gates.double()
    kept = F.logsigmoid(gates)
    if ok is not None:
        kept = torch.where(ok[:, None], kept, 0.0)
    total = kept.cumsum(-1)
    return F.logsigmoid(-gates) - total, total[..., -1].detach()


@dataclass(frozen=True)
class _Weights:
    """How much keys count.

    own [B, H, N, C]: a key's weight in the sum of its chunk · mass [B, H, N]: their sum · within [B, H, N, C]: the mass of the
    keys of the chunk up to a query · pairs [B, H, N, C, C]: a key's weight for a query · past [B, H, N, C]: that of what came
    before the chunk · scales [B, H, N + 1]: of the sums before, and of each chunk.
    """

    own: Tensor
    mass: Tensor
    within: Tensor
    pairs: Tensor
    past: Tensor | None = None
    scales: Tensor | None = None

    @staticmethod
    def equal(k: Tensor, ok: Tensor | None, size: int) -> _Weights:
        """All real keys count alike, and nothing needs a scale."""
        own = k.new_ones(k.shape[:4], dtype=_wide(k.dtype))
        if ok is not None:
            own = own * cut(ok[:, None, :, None].to(own.dtype), size)[..., 0]
        return _Weights(own, own.sum(-1), own.cumsum(-1), own)

    @staticmethod
    def of(log_weight: Tensor, sums: Sums) -> _Weights:
        """Scales are maxima of the past. They cancel when what was found is divided, so they have no gradient."""
        assert sums.scale is not None
        high = log_weight.detach().cummax(-1).values
        scales = torch.cat([sums.scale[..., None].to(high.dtype), high[..., -1]], -1)
        before = scales.cummax(-1).values[..., :-1, None]
        top, last = torch.maximum(high, before), high[..., -1:]
        # Differences are taken before they are rounded: log weights themselves may be large.
        own, level = (log_weight - last).to(sums.scale.dtype), (top - last).to(sums.scale.dtype)
        later = torch.ones(own.size(-1), own.size(-1), dtype=torch.bool, device=own.device).triu(1)
        pairs = (own[..., None, :] - level[..., None]).masked_fill(later, -torch.inf).exp()
        own = torch.where(log_weight > NOTHING / 2, own.exp(), 0.0)
        past = (before - top).to(own.dtype).exp()
        return _Weights(own, own.sum(-1), pairs.sum(-1), pairs, past, scales)


def _carry(sums: Sums, chunks: Sums, scales: Tensor | None) -> tuple[Sums, Sums]:
    """The sums of all that came before each chunk, [B, H, N, …], and after the last, [B, H, …]."""
    features, width = sums.values.shape[-2:]
    first = torch.cat([sums.values.flatten(-2), sums.keys, sums.mass[..., None]], -1)[:, :, None]
    each = torch.cat([chunks.values.flatten(-2), chunks.keys, chunks.mass[..., None]], -1)
    run, top = accumulate(torch.cat([first, each], 2), scales)
    values, keys, mass = run.split([features * width, features, 1], -1)
    values, mass = values.unflatten(-1, (features, width)), mass[..., 0]
    after = Sums(*(part[:, :, -1].contiguous() for part in (values, keys, mass)))
    if top is not None and sums.scale is not None:
        after.scale = top[..., -1].to(sums.scale.dtype)
    return Sums(*(part[:, :, :-1] for part in (values, keys, mass))), after


def accumulate(sums: Tensor, scale: Tensor | None, group: int = 128) -> tuple[Tensor, Tensor | None]:
    """Running sums of sums [..., N, W], of which each stands for itself times exp(scale [..., N]); and the scales they have.

    Scales are logarithms: Σ_{i ≤ j} sums_i exp(scale_i − top_j), with the running maximum top. Up to `group` sums are added up
    by one product, more in groups.
    """
    if scale is None:
        return sums.cumsum(-2), None
    count = sums.size(-2)
    if count <= group:
        top = scale.cummax(-1).values
        later = torch.ones(count, count, dtype=torch.bool, device=sums.device).triu(1)
        share = (scale[..., None, :] - top[..., None]).masked_fill(later, -torch.inf).exp()
        return share.to(sums.dtype) @ sums, top
    grouped, scales = cut(sums, group), cut(scale[..., None], group, NOTHING)[..., 0]
    inner, level = accumulate(grouped, scales, group)
    assert level is not None
    outer, above = accumulate(inner[..., -1, :], level[..., -1], group)
    assert above is not None
    outer, above = F.pad(outer, (0, 0, 1, 0))[..., :-1, None, :], F.pad(above, (1, 0), value=NOTHING)[..., :-1, None]
    top = torch.maximum(level, above)
    run = inner * (level - top).exp()[..., None].to(sums.dtype) + outer * (above - top).exp()[..., None].to(sums.dtype)
    return run.flatten(-3, -2)[..., :count, :], top.flatten(-2)[..., :count]


def divide(seen: Seen, least: Tensor | float = 0.0) -> Tensor:
    """What queries found, [B, H, T, D]; 0 where they saw nothing. `least` is the least φ(q)·φ(k) that is not an error."""
    norm = torch.maximum(seen.norm, seen.mass * least)
    some = norm > 0
    return torch.where(some[..., None], seen.total / torch.where(some, norm, 1.0)[..., None].to(seen.total.dtype), 0.0)


def cut(x: Tensor, size: int, value: float = 0.0) -> Tensor:
    """[..., T, W] → [..., N, size, W], filled up with `value`."""
    missing = -x.size(-2) % size
    if missing:  # padding with nothing would copy
        x = F.pad(x, (0, 0, 0, missing), value=value)
    return x.unflatten(-2, (-1, size))


def _real(k: Tensor, v: Tensor, log_weight: Tensor | None, ok: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys that are not real add nothing, whatever is in them."""
    if ok is None:
        return k, v, log_weight
    here = ok[:, None, :, None]
    k, v = torch.where(here, k, 0.0), torch.where(here, v, 0.0)
    return k, v, None if log_weight is None else torch.where(here[..., 0], log_weight, NOTHING)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The precision of sums: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return (a @ b).to(dtype)
