"""Scaled dot-product attention with masks and fused kernels. Only this module and `packed_sequences` call fused kernels.

Shapes: G sources · K beams · B = G·K rows · H heads · T queries · S keys · R room · D head width.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.attention.core.kv_cache import CacheIndex, ConcatenatedKeyValues, CrossAttentionMemory, KeyValueCache, additive
from weft.attention.core.packed_sequences import attend_ragged, can_attend_ragged, packing
from weft.data.batch import Layout
from weft.layers.kernels import triton_available
from weft.layers.kernels.cpp import steps, used
from weft.layers.linear_norm_dropout import dropout
from weft.layers.step_recorder import record, recording

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""The fused backends used on a GPU. cuDNN's is left out: it plans for each new shape, and batches of text have many."""

SHORT = 128 * 128
"""Queries × keys up to which a CPU is faster without the fused kernel."""

PAIRS = "row head query key"
"""The axes of scores and weights, as they are recorded."""

KeyValueStore = ConcatenatedKeyValues | KeyValueCache
Context = tuple[Tensor, Tensor | None]
"""The context of queries [B, H, T, D], and their weights [B, H, T, S] if requested."""

Pattern = Callable[[Tensor, Tensor], Tensor]
"""(query positions [B, T, 1], key positions [B, 1, S]) → [B, H or 1, T, S] bool: which pairs may attend to each other."""


class AttendOptions(NamedTuple):
    """Options of self-attention over a store to which the keys of the queries were appended last.

    `positions` [B, T] of the queries are from `store.place` before appending; only a pattern or a `KeyValueCache` needs them.
    """

    causal: bool
    layout: Layout | None = None
    positions: Tensor | None = None
    dropout: float = 0.0
    need_weights: bool = False


def attend(q: Tensor, store: KeyValueStore, options: AttendOptions, pattern: Pattern | None = None) -> Context:
    """Self-attention of queries q [B, H, T, D]."""
    causal, layout, positions, dropout, need_weights = options
    if isinstance(store, KeyValueCache):
        assert positions is not None
        return _attend_cache(q, store, positions, pattern, dropout, need_weights)
    assert store.k is not None and store.v is not None
    extent, total = q.size(2), store.k.size(2)
    whole = extent == total
    packed = layout is not None and layout.packed
    if causal and whole and not packed and pattern is None and _fused(q, total, need_weights):
        # Padding comes last, so a real query never reaches a padded key: the causal mask alone is enough.
        return _scaled_dot_product(q, store.k, store.v, None, dropout, causal=True), None
    segments = packing(layout)
    if segments and whole and pattern is None and not need_weights and can_attend_ragged(q, segments, segments):
        return attend_ragged(q, store.k, store.v, segments, segments, causal=causal, dropout=dropout), None
    mask = _seen(store, extent, causal, layout)
    if pattern is not None:
        assert positions is not None
        mask = _both(mask, pattern(positions[:, :, None], store.key_positions()[:, None, :]))
    return mix(q, store.k, store.v, mask, dropout, need_weights)


def visible(store: KeyValueStore, extent: int, options: AttendOptions) -> tuple[Tensor, Tensor, Tensor | None]:
    """k, v [B, H, S, D] and the mask [B, 1, T or 1, S] of the last `extent` tokens, for scores other than plain products."""
    if isinstance(store, KeyValueCache):
        assert options.positions is not None
        return *store.dense(), _seen_cells(store, options.positions)
    assert store.k is not None and store.v is not None
    return store.k, store.v, _seen(store, extent, options.causal, options.layout)


def _seen(store: ConcatenatedKeyValues, extent: int, causal: bool, layout: Layout | None) -> Tensor | None:
    assert store.k is not None
    mask = _segment_mask(store.segments, layout if layout is not None and layout.packed else None)
    if not causal:
        return mask
    order = torch.arange(store.k.size(2), device=store.k.device)
    return _both(mask, (order[None] <= order[order.numel() - extent :, None])[None, None])


def _seen_cells(store: KeyValueCache, positions: Tensor) -> Tensor:
    return (store.key_positions()[:, None, :] <= positions[:, :, None])[:, None]


def attend_memory(
    q: Tensor, memory: CrossAttentionMemory, *, layout: Layout | None, dropout: float = 0.0, need_weights: bool = False
) -> Context:
    """Cross-attention of queries q [B, H, T, D]; the beams of a source become further queries over its single memory."""
    segments = packing(layout)
    if segments and memory.packing and not need_weights and can_attend_ragged(q, segments, memory.packing):
        where = segments, memory.packing
        return attend_ragged(q, memory.k, memory.v, *where, causal=False, dropout=dropout, joint=memory.joint), None
    packed = layout is not None and layout.packed
    unmasked = not packed and (memory.bias is not None or memory.segments is None)
    if unmasked and not need_weights and _steps(q, memory.k, dropout):
        return _attend_step(q, memory.k[:, :, None], memory.v[:, :, None], bias=memory.bias), None
    bias = None if packed or need_weights else memory.bias
    mask = None if bias is not None else _segment_mask(memory.segments, layout if packed else None)
    return _mix_beams(q, memory.k, memory.v, mask, dropout, need_weights, bias)


def _mix_beams(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, share: float, need_weights: bool, bias: Tensor | None
) -> Context:
    """`mix` of queries [B, H, T, D] with the keys and values [G, H, S, D] that the beams of a source share."""
    sources, (rows, heads, extent, width) = k.size(0), q.shape
    if rows == sources:
        return mix(q, k, v, mask, share, need_weights, bias)
    beams = rows // sources
    q = q.view(sources, beams, heads, extent, width).transpose(1, 2).reshape(sources, heads, beams * extent, width)
    context, weights = mix(q, k, v, mask, share, need_weights, bias)
    return _rows(context, beams), None if weights is None else _rows(weights, beams)


def mix(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, share: float, need_weights: bool, bias: Tensor | None = None
) -> Context:
    """softmax(q kᵀ / √D + bias) v. A query that sees no key gets 0.

    Uses the fused kernel unless weights are needed; on a CPU only for long sequences, since plain products are up to six times
    faster for short ones, including the backward pass.
    """
    if _fused(q, k.size(2), need_weights):
        if bias is not None:
            bias = bias.to(q.dtype)
            mask = bias if mask is None else bias.masked_fill(~mask, -math.inf)
        return _scaled_dot_product(q, k, v, mask, share), None
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    biased = scores if bias is None else scores + bias
    if listened := recording():
        _record_scores(q, k, scores, bias, biased)
    weights = masked_softmax(biased, mask)
    context = dropout(weights, share).to(v.dtype) @ v
    if listened:
        record_context(context, weights, v)
    return context, weights if need_weights else None


def _record_scores(q: Tensor, k: Tensor, scores: Tensor, bias: Tensor | None, biased: Tensor) -> None:
    products, root = q @ k.transpose(-1, -2), math.sqrt(q.size(-1))
    operands = {"q": (q, "row head query channel"), "k": (k, "row head key channel")}
    record("products", products, PAIRS, "sum(q * k, channel)", **operands)
    if bias is None:
        record("scores", scores, PAIRS, "products / root", products=(products, PAIRS), root=root)
    else:
        record("content scores", scores, PAIRS, "products / root", products=(products, PAIRS), root=root)
        record("scores", biased, PAIRS, "content + bias", content=(scores, PAIRS), bias=(bias, PAIRS))


def record_context(context: Tensor, weights: Tensor, values: Tensor, of: nn.Module | None = None) -> None:
    """Records the context [B, H, T, D] of weights [B, H, T, S] and values [B, H, S, D]."""
    record(
        "context",
        context,
        "row head query channel",
        "sum(weights * v, key)",
        of,
        weights=(weights, PAIRS),
        v=(values, "row head key channel"),
    )


def _fused(q: Tensor, keys: int, need_weights: bool) -> bool:
    """Whether to use the fused kernel."""
    return not need_weights and (q.device.type != "cpu" or q.size(2) * keys > SHORT)


def _scaled_dot_product(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, *, causal: bool = False
) -> Tensor:
    """torch's fused attention, by one of `BACKENDS` on a GPU."""
    with sdpa_kernel(BACKENDS) if q.device.type == "cuda" else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)


def masked_softmax(scores: Tensor, mask: Tensor | None, *, shown: str = "weights") -> Tensor:
    """Softmax over the last axis where `mask` allows; rows without any allowed entry are 0, forward and backward.

    shown: the name under which it is recorded, for scores [B, H, T, S] or [B, T, S]; "": it is not.
    """
    if mask is None:
        weights = scores.softmax(-1)
    else:
        lowest = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)
    if shown and recording():
        _record_softmax(shown, scores, mask, weights)
    return weights


def _record_softmax(name: str, scores: Tensor, mask: Tensor | None, weights: Tensor) -> None:
    axes = PAIRS if scores.dim() == 4 else "row query key"
    if mask is not None:
        masked = scores.masked_fill(~mask, -math.inf)
        allowed, given = mask.expand(masked.shape), scores.expand(masked.shape)
        record("masked scores", masked, axes, "where(mask, scores, -inf)", scores=(given, axes), mask=(allowed, axes))
        scores = masked
    record(name, weights, axes, "softmax(scores, key)", scores=(scores, axes))


def _attend_cache(
    q: Tensor, store: KeyValueCache, positions: Tensor, pattern: Pattern | None, dropout: float, need_weights: bool
) -> Context:
    beams = store.k.size(2)
    if pattern is None and not need_weights and _steps(q, store.k, dropout):
        return _attend_step(q, store.k, store.v, store.index), None
    if pattern is not None or (beams > 1 and (store.owned or need_weights)):
        seen = _seen_cells(store, positions)
        if pattern is not None:
            seen = seen & pattern(positions[:, :, None], store.key_positions()[:, None, :])
        return mix(q, *store.dense(), seen, dropout, need_weights)
    cells = _own_cells(store, positions)
    # Computed once for all layers. Every query sees itself, so no row is empty.
    bias = store.index.cached(("bias", q.dtype, id(cells)), lambda: additive(cells, q.dtype), cells)
    # All beams of a source attend to all its cells in one call; the bias allows each only the cells of its ancestors.
    return _mix_beams(q, store.k.flatten(2, 3), store.v.flatten(2, 3), None, dropout, need_weights, bias)


def _steps(q: Tensor, k: Tensor, dropout: float) -> bool:
    """Whether a kernel for single queries can be used."""
    if q.size(2) > 1 or dropout or torch.is_grad_enabled():
        return False
    width = q.size(-1)
    return (triton_available(q) and 16 <= width <= 256 and width.bit_count() == 1) or steps(q, k)


def _attend_step(q: Tensor, k: Tensor, v: Tensor, index: CacheIndex | None = None, *, bias: Tensor | None = None) -> Tensor:
    """[B, H, 1, D]: attends from single queries to k, v [G, H, K or 1, R, D], in the cells that the index names, or in all."""
    cells = (None, None) if index is None else (index.ancestry, index.length)
    inputs = q[:, :, 0], k, v, *cells, None if bias is None else bias[:, 0, 0]
    if (kernels := used(q)) is not None:
        return kernels.attend_step(*inputs)[:, :, None]
    from weft.layers.kernels.triton.attention import attend_step

    return attend_step(*inputs)[:, :, None]


def _own_cells(store: KeyValueCache, positions: Tensor) -> Tensor:
    """[G, 1, K·T, K·R]: the cells with the tokens of each beam up to `positions` [B, T]; computed once for all layers."""

    def make() -> Tensor:
        sources, beams, room = store.index.ancestry.shape
        extent = positions.size(1)
        seen = _seen_cells(store, positions).view(sources, beams, extent, 1, room)
        if beams > 1:
            beam = torch.arange(beams, device=positions.device, dtype=torch.int16)[:, None]
            seen = seen & (store.index.ancestry[:, :, None, None, :] == beam)
        return seen.view(sources, 1, beams * extent, beams * room)

    return store.index.cached(("cells", id(positions)), make, positions)


def _rows(x: Tensor, beams: int) -> Tensor:
    """[G, H, K·T, D] → [G·K, H, T, D]."""
    sources, heads, _, width = x.shape
    return x.view(sources, heads, beams, -1, width).transpose(1, 2).flatten(0, 1)


def _segment_mask(keys: Tensor | None, queries: Layout | None) -> Tensor | None:
    """[B, 1, T or 1, S]: real keys; in packed rows only those of the query's own sentence."""
    if keys is None:
        return None
    if queries is None:
        return (keys > 0)[:, None, None]
    return ((keys[:, None] == queries.segments[:, :, None]) & queries.mask[:, :, None])[:, None]


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b
