"""Fused attention inside each sentence of a packed row: pairs of different sentences are never formed.

Shape letters: H heads · T queries · S keys · D width of a head · m pieces of a row, sentences and padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.batch import Layout


@dataclass(frozen=True)
class Packing:
    """Where the pieces of a packed row begin and end, [m + 1] int32, and how long the longest is at most."""

    offsets: Tensor
    longest: int


def packing(layout: Layout | None) -> Packing | None:
    """That of a packed layout; None if rows are padded."""
    return None if layout is None or layout.offsets is None else Packing(layout.offsets, layout.longest)


def serves(q: Tensor, queries: Packing | None, keys: Packing | None) -> bool:
    """Whether the kernel can be used: packed rows on a GPU, in half precision, in as many pieces on both sides."""
    if queries is None or keys is None or q.device.type != "cuda" or q.dtype not in (torch.bfloat16, torch.float16):
        return False
    return queries.offsets.numel() == keys.offsets.numel() and q.size(-1) % 8 == 0


def attend_ragged(q: Tensor, k: Tensor, v: Tensor, queries: Packing, keys: Packing, *, causal: bool, dropout: float) -> Tensor:
    """softmax(q kᵀ / √D) v, piece by piece: q [1, H, T, D], k, v [1, H, S, D] → [1, H, T, D].

    This is FlashAttention for ragged rows. torch.nn.attention.varlen calls the same kernel, but allows no dropout.
    """
    q, k, v = (part.transpose(1, 2)[0] for part in (q, k, v))
    found: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, queries.offsets, keys.offsets, queries.longest, keys.longest, dropout, causal, False
    )[0]
    return found.transpose(0, 1)[None]
