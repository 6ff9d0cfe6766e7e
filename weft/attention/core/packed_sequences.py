"""Fused attention within each sentence of a packed row: pairs across sentences are never formed.

Shapes: H heads · T queries · S keys · D head width · m segments of a row (sentences and padding).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.data.batch import Layout
from weft.layers.kernels import modern, triton_available
from weft.layers.recurrent import repack, unpack

Heads = tuple[Tensor, Tensor, Tensor]
"""q, k, v [B, H, T, D] of whole rows."""

SHORT = 512
"""Sentence length up to which the Triton kernel is faster: FlashAttention's tiles suit longer ones."""


@dataclass(frozen=True)
class RaggedPacking:
    """The segments of a packed row: offsets [m + 1], greatest length, and sentence of each token [T] (0: none), in int32."""

    offsets: Tensor
    longest: int
    segments: Tensor


def packing(layout: Layout | None) -> RaggedPacking | None:
    """The packing of a packed layout; None if rows are padded."""
    if layout is None or layout.offsets is None:
        return None
    return RaggedPacking(layout.offsets, layout.longest, layout.segments[0])


def can_attend_ragged(q: Tensor, queries: RaggedPacking | None, keys: RaggedPacking | None) -> bool:
    """Whether fused kernels can be used: packed rows on a GPU, in half precision, with equally many segments on both sides."""
    if queries is None or keys is None:
        return False
    return queries.offsets.numel() == keys.offsets.numel() and flash_available(q)


def attend_ragged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: RaggedPacking,
    keys: RaggedPacking,
    *,
    causal: bool,
    dropout: float,
    joint: Tensor | None = None,
) -> Tensor:
    """softmax(q kᵀ / √D) v within each segment: q [1, H, T, D], k, v [1, H, S, D] → [1, H, T, D].

    joint [1, S, 2·H·D]: the product of which k and v are the halves, if there is one. Long sentences use FlashAttention for
    ragged rows. torch.nn.attention.varlen calls the same kernel, but without dropout.
    """
    if _short(q, queries, keys):
        # [1, H, T, D] → [T, 1, H, D] as views; the gradient of an index would be a copy.
        parts = [each.squeeze(0).transpose(0, 1).unsqueeze(1) for each in (q, k, v)]
        if joint is not None:
            parts[1:] = [joint.view(-1, 2, *parts[1].shape[2:])]
        return _attend_short(parts, queries, keys, causal, dropout).transpose(0, 1)[None]
    context: Tensor = torch.ops.aten._flash_attention_forward(
        *(part.transpose(1, 2)[0] for part in (q, k, v)),
        *(queries.offsets, keys.offsets, queries.longest, keys.longest, dropout, causal, False),
    )[0]
    return context.transpose(0, 1)[None]


def attend_joint(joint: Tensor, heads: int, packing: RaggedPacking, *, causal: bool, dropout: float) -> Tensor | None:
    """Self-attention from one product [1, T, 3·H·D] of queries, keys and values → [1, T, H·D].

    Returns None if the kernel that takes the joint product, and returns a joint gradient, cannot be used.
    """
    parts = joint.view(joint.size(1), 3, heads, -1)
    if not (can_attend_ragged(parts, packing, packing) and _short(parts, packing, packing)):
        return None
    return _attend_short([parts], packing, packing, causal, dropout).flatten(1)[None]


def _short(q: Tensor, queries: RaggedPacking, keys: RaggedPacking) -> bool:
    width = q.size(-1)
    return max(queries.longest, keys.longest) <= SHORT and 16 <= width <= 128 and width.bit_count() == 1 and triton_available(q)


def _attend_short(parts: list[Tensor], queries: RaggedPacking, keys: RaggedPacking, causal: bool, dropout: float) -> Tensor:
    """[T, H, D]."""
    from weft.layers.kernels.triton.attention import attend_pieces

    seed = torch.randint(1 << 62, (1,), device=parts[0].device) if dropout else None
    where = (queries.segments, queries.offsets, keys.segments, keys.offsets)
    return attend_pieces(parts, *where, seed, dropout, keys.longest, causal)[0]


def flash_available(q: Tensor) -> bool:
    """Whether FlashAttention supports these queries: on a GPU, in half precision."""
    width = q.size(-1)
    return q.dtype in (torch.bfloat16, torch.float16) and width % 8 == 0 and width <= 256 and modern(q.device)


def attend_window(
    q: Tensor, k: Tensor, v: Tensor, window: tuple[int, int], packing: RaggedPacking | None, dropout: float
) -> Tensor:
    """softmax(q kᵀ / √D) v over the keys at most `window` (before, after) away, in each row or segment; all [B, H, T, D]."""
    parts = [part.transpose(1, 2) for part in (q, k, v)]
    where = None if packing is None else packing.offsets
    longest = q.size(2) if packing is None else packing.longest
    context: Tensor = torch.ops.aten._flash_attention_forward(
        *(parts if packing is None else [part[0] for part in parts]),
        *(where, where, longest, longest, dropout, False, False),
        window_size_left=window[0],
        window_size_right=window[1],
    )[0]
    return (context if packing is None else context[None]).transpose(1, 2)


def by_rows(heads: Heads, layout: Layout, attend: Callable[[Heads, Layout], Tensor]) -> Tensor:
    """Unpacks a packed row to padded rows, applies `attend`, and packs the result again: [1, H, T, D]."""
    both, rows = unpack(torch.cat([part.transpose(1, 2) for part in heads], 2), layout)
    q, k, v = both.transpose(1, 2).chunk(3, 1)
    return repack(attend((q, k, v), rows).transpose(1, 2), layout).transpose(1, 2)
