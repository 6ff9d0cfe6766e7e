"""softmax(q kᵀ / √D) v for single queries: one decoding step, over the cache or over a source.

Each query reads only the cells it may see: those of its ancestors, up to its own. Kernels for whole sequences fill tiles of 64
or 128 queries, but a step has one per beam.

Shapes: G sources · K beams · B = G·K rows · H heads · R cells · D head width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CELLS, WARPS = 16, 1
"""Cells read at a time, and warps per query."""


@triton.jit
def _step(
    q, k, v, out, ancestry, lengths, bias, scale, cells, beams, heads,
    q_row, q_head, k_source, k_head, k_beam, k_cell, v_source, v_head, v_beam, v_cell, bias_source,
    ANCESTRY: tl.constexpr, LENGTHS: tl.constexpr, BIAS: tl.constexpr, WIDTH: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source, channel = row // beams, tl.arange(0, WIDTH)
    count = tl.load(lengths + source).to(tl.int32) if LENGTHS else cells
    mine = tl.load(q + row * q_row + head * q_head + channel).to(tl.float32)
    k += source * k_source + head * k_head
    v += source * v_source + head * v_head
    best = tl.full([1], -float("inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    context = tl.zeros([WIDTH], tl.float32)
    for start in range(0, count, CELLS):
        cell = start + tl.arange(0, CELLS)
        inside = cell < count
        beam = tl.zeros([CELLS], tl.int32)
        if ANCESTRY:
            beam = tl.load(ancestry + row * cells + cell, mask=inside, other=0).to(tl.int32)
        keys = tl.load(k + (beam * k_beam + cell * k_cell)[:, None] + channel[None, :], mask=inside[:, None], other=0.0)
        scores = tl.sum(keys.to(tl.float32) * mine[None, :], 1) * scale
        if BIAS:
            scores += tl.load(bias + source * bias_source + cell, mask=inside, other=0.0).to(tl.float32)
        scores = tl.where(inside, scores, -float("inf"))
        higher = tl.maximum(best, tl.max(scores, 0))
        level = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp(scores - level)
        again = tl.exp(best - level)
        values = tl.load(v + (beam * v_beam + cell * v_cell)[:, None] + channel[None, :], mask=inside[:, None], other=0.0)
        total = total * again + tl.sum(weights, 0)
        context = context * again + tl.sum(weights[:, None] * values.to(tl.float32), 0)
        best = higher
    context = context / tl.where(total > 0.0, total, 1.0)
    tl.store(out + (row * heads + head) * WIDTH + channel, context.to(out.dtype.element_ty))


@torch.library.custom_op("weft::attend_step", mutates_args=())
def attend_step(
    query: Tensor, key: Tensor, value: Tensor, ancestry: Tensor | None, lengths: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Attends from query [B, H, D] to key and value [G, H, K or 1, R, D]: [B, H, D].

    ancestry [G, K, R]: the beam whose cell each beam reads; None: the first. lengths [G]: the number of filled cells; None:
    all. bias [G, R] is added to scores. A query that sees nothing gets 0.
    """
    rows, heads, width = query.shape
    sources, cells = key.size(0), key.size(3)
    query, key, value = (each if each.stride(-1) == 1 else each.contiguous() for each in (query, key, value))
    out = torch.empty(rows, heads, width, dtype=query.dtype, device=query.device)
    _step[(rows, heads)](
        *(query, key, value, out, *(query if each is None else each for each in (ancestry, lengths, bias))),
        *(width**-0.5, cells, rows // sources, heads, query.stride(0), query.stride(1)),
        *(store.stride(axis) for store in (key, value) for axis in range(4)),
        0 if bias is None else bias.stride(0),
        ANCESTRY=ancestry is not None,
        LENGTHS=lengths is not None,
        BIAS=bias is not None,
        WIDTH=width,
        CELLS=CELLS,
        num_warps=WARPS,
    )
    return out


@attend_step.register_fake
def _(query: Tensor, *rest: Tensor | None) -> Tensor:
    return query.new_empty(query.shape)
