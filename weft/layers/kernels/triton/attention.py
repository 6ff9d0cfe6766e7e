"""softmax(q kᵀ / √D) v within the short segments of a packed row, and for the single queries of a decoding step.

FlashAttention gives every segment separate tiles of 128 queries and keys, which sentences of thirty tokens leave mostly empty.
Here a tile takes consecutive queries of several segments and reads the keys from its first segment to its last. In a decoding
step, over the cache or over a source, each query reads only the cells it may see: those of its ancestors, up to its own.

Shapes: T queries · S keys · m segments · G sources · K beams · B = G·K rows · H heads · R cells · D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.data.batch import power_of_two
from weft.layers.kernels.triton.add_norm import kept

ROWS, COLUMNS, WARPS, STAGES = 64, 64, 4, 3
"""A tile: queries, keys, warps, and pipeline stages. Measured on an H200, like all tile sizes here."""

NOWHERE = tl.constexpr(1 << 30)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _between(segments, offsets, tokens, extent):
    """The first key and the end of the segment that each token attends to; padding attends to nothing."""
    segment = tl.load(segments + tokens, mask=tokens < extent, other=0)
    real = segment > 0
    begin = tl.load(offsets + segment - 1, mask=real, other=NOWHERE)
    end = tl.load(offsets + segment, mask=real, other=0)
    return begin, end


@triton.jit
def _tile(tensor, tokens, extent, by_token, WIDTH: tl.constexpr):
    """[tokens, WIDTH] of one head."""
    channel = tl.arange(0, WIDTH)
    # A row may have more than 2³¹ entries.
    return tl.load(
        tensor + tokens.to(tl.int64)[:, None] * by_token + channel[None, :], mask=(tokens < extent)[:, None], other=0.0
    )


@triton.jit
def _number(rows, columns, extent, longest, head):
    """The number of a weight, for dropout. `longest` is a power of two here."""
    return ((head * extent + rows) * longest + (columns & (longest - 1))).to(tl.uint32)


@triton.jit
def _forward(
    q, k, v, out, lse, q_segments, k_offsets, seed, share, scale, queries, keys, longest,
    q_token, q_head, k_token, k_head, v_token, v_head,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    begin, end = _between(q_segments, k_offsets, rows, queries)
    if CAUSAL:
        end = tl.minimum(end, rows + 1)
    mine = _tile(q + head * q_head, rows, queries, q_token, WIDTH)
    best = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    context = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(tl.min(begin, 0), tl.max(end, 0), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        theirs = _tile(k + head * k_head, columns, keys, k_token, WIDTH)
        scores = tl.dot(mine, tl.trans(theirs)) * scale
        seen = (columns[None, :] >= begin[:, None]) & (columns[None, :] < end[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        # Avoids −inf − (−inf) in rows that have seen nothing yet.
        level = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp2(scores - level[:, None])
        again = tl.exp2(best - level)
        total = total * again + tl.sum(weights, 1)
        if DROPS:
            stay = kept(seed, share, _number(rows[:, None], columns[None, :], queries, longest, head))
            weights = tl.where(stay, weights / (1.0 - share), 0.0)
        values = _tile(v + head * v_head, columns, keys, v_token, WIDTH)
        context = context * again[:, None] + tl.dot(weights.to(values.dtype), values)
        best = higher
    any_seen = total > 0.0
    context = context / tl.where(any_seen, total, 1.0)[:, None]
    ok = rows < queries
    tl.store(lse + head * queries + rows, tl.where(any_seen, best + tl.log2(total), 0.0), mask=ok)
    place = out + (rows.to(tl.int64)[:, None] * tl.num_programs(1) + head) * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(place, context.to(out.dtype.element_ty), mask=ok[:, None])


@triton.jit
def _backward_queries(
    q, k, v, out, slope, lse, delta, grad_q, q_segments, k_offsets, seed, share, scale, queries, keys, longest,
    q_token, q_head, k_token, k_head, v_token, v_head, slope_token, slope_head, grad_token,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ok = rows < queries
    begin, end = _between(q_segments, k_offsets, rows, queries)
    if CAUSAL:
        end = tl.minimum(end, rows + 1)
    mine = _tile(q + head * q_head, rows, queries, q_token, WIDTH)
    wanted = _tile(slope + head * slope_head, rows, queries, slope_token, WIDTH)
    context = _tile(out + head * WIDTH, rows, queries, tl.num_programs(1) * WIDTH, WIDTH)
    level = tl.load(lse + head * queries + rows, mask=ok, other=0.0)
    mean = tl.sum(context.to(tl.float32) * wanted.to(tl.float32), 1)
    tl.store(delta + head * queries + rows, mean, mask=ok)
    grad = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(tl.min(begin, 0), tl.max(end, 0), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        theirs = _tile(k + head * k_head, columns, keys, k_token, WIDTH)
        values = _tile(v + head * v_head, columns, keys, v_token, WIDTH)
        seen = (columns[None, :] >= begin[:, None]) & (columns[None, :] < end[:, None])
        scores = tl.dot(mine, tl.trans(theirs)) * scale
        weights = tl.where(seen, tl.exp2(scores - level[:, None]), 0.0)
        toward = tl.dot(wanted, tl.trans(values))
        if DROPS:
            stay = kept(seed, share, _number(rows[:, None], columns[None, :], queries, longest, head))
            toward = tl.where(stay, toward / (1.0 - share), 0.0)
        change = weights * (toward - mean[:, None])
        grad += tl.dot(change.to(theirs.dtype), theirs)
    place = grad_q + rows.to(tl.int64)[:, None] * grad_token + head * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(place, (grad * scale * LN2).to(grad_q.dtype.element_ty), mask=ok[:, None])


@triton.jit
def _backward_keys(
    q, k, v, slope, lse, delta, grad_k, grad_v, k_segments, q_offsets, seed, share, scale, queries, keys, longest,
    q_token, q_head, k_token, k_head, v_token, v_head, slope_token, slope_head, grad_token,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    begin, end = _between(k_segments, q_offsets, columns, keys)
    if CAUSAL:
        begin = tl.maximum(begin, columns)
    theirs = _tile(k + head * k_head, columns, keys, k_token, WIDTH)
    values = _tile(v + head * v_head, columns, keys, v_token, WIDTH)
    grad_of_k = tl.zeros([COLUMNS, WIDTH], tl.float32)
    grad_of_v = tl.zeros([COLUMNS, WIDTH], tl.float32)
    for start in range(tl.min(begin, 0), tl.max(end, 0), ROWS):
        rows = start + tl.arange(0, ROWS)
        ok = rows < queries
        mine = _tile(q + head * q_head, rows, queries, q_token, WIDTH)
        wanted = _tile(slope + head * slope_head, rows, queries, slope_token, WIDTH)
        level = tl.load(lse + head * queries + rows, mask=ok, other=0.0)
        mean = tl.load(delta + head * queries + rows, mask=ok, other=0.0)
        seen = (rows[None, :] >= begin[:, None]) & (rows[None, :] < end[:, None])
        scores = tl.dot(theirs, tl.trans(mine)) * scale
        weights = tl.where(seen, tl.exp2(scores - level[None, :]), 0.0)
        toward = tl.dot(values, tl.trans(wanted))
        used = weights
        if DROPS:
            stay = kept(seed, share, _number(rows[None, :], columns[:, None], queries, longest, head))
            toward = tl.where(stay, toward / (1.0 - share), 0.0)
            used = tl.where(stay, weights / (1.0 - share), 0.0)
        grad_of_v += tl.dot(used.to(wanted.dtype), wanted)
        change = weights * (toward - mean[None, :])
        grad_of_k += tl.dot(change.to(mine.dtype), mine)
    place = columns.to(tl.int64)[:, None] * grad_token + head * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (columns < keys)[:, None]
    tl.store(grad_k + place, (grad_of_k * scale * LN2).to(grad_k.dtype.element_ty), mask=ok)
    tl.store(grad_v + place, grad_of_v.to(grad_v.dtype.element_ty), mask=ok)


@torch.library.custom_op("weft::attend_pieces", mutates_args=())
def attend_pieces(
    parts: list[Tensor],
    segments_q: Tensor,
    cum_seq_q: Tensor,
    segments_k: Tensor,
    cum_seq_k: Tensor,
    seed: Tensor | None,
    share: float,
    longest: int,
    is_causal: bool,
) -> tuple[Tensor, Tensor]:
    """The context [T, H, D] of queries over keys and values, and the base-2 log-denominators of the softmax [H, T].

    parts: queries [T, 1, H, D] and keys and values [S, 1, H, D]. Those that come from one product are one tensor: keys and
      values [S, 2, H, D], or all [T, 3, H, D]; its gradient then is one tensor too. Tokens of segment i are at cum_seq[i − 1]
      to before cum_seq[i] and attend to their own segment; segment 0 is padding and gets 0. A share of the weights is dropped
      according to a seed on the device, so that replayed graphs draw new masks; without a seed, none. longest: an upper bound
      of the length of a segment. Names follow torch's operation.
    """
    query, key, value = _apart([_side_by_side(part) for part in parts])
    queries, heads, width = query.shape
    out = torch.empty(queries, heads, width, dtype=query.dtype, device=query.device)
    lse = torch.empty(heads, queries, dtype=torch.float32, device=query.device)
    numbers = _numbers(query, key, share, longest)
    _forward[(triton.cdiv(queries, ROWS), heads)](
        *(query, key, value, out, lse, segments_q, cum_seq_k, cum_seq_q if seed is None else seed),
        *(*numbers, *_strides(query, key, value)),
        **_constants(is_causal, seed, width),
    )
    return out, lse


@attend_pieces.register_fake
def _(parts: list[Tensor], *rest: Any) -> tuple[Tensor, Tensor]:
    queries, _, heads, width = parts[0].shape
    return parts[0].new_empty(queries, heads, width), parts[0].new_empty(heads, queries, dtype=torch.float32)


@torch.library.custom_op("weft::attend_pieces_backward", mutates_args=())
def attend_pieces_backward(
    slope: Tensor,
    parts: list[Tensor],
    segments_q: Tensor,
    cum_seq_q: Tensor,
    segments_k: Tensor,
    cum_seq_k: Tensor,
    seed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    share: float,
    longest: int,
    is_causal: bool,
) -> list[Tensor]:
    """Gradients of the parts."""
    query, key, value = _apart([_side_by_side(part) for part in parts])
    slope = _side_by_side(slope)
    queries, heads, width = query.shape
    delta = torch.empty_like(lse)
    grads = [torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in parts]
    of_query, of_key, of_value = _apart(grads)
    numbers = cum_seq_q if seed is None else seed, *_numbers(query, key, share, longest)
    strides = _strides(query, key, value, slope)
    constants = _constants(is_causal, seed, width)
    _backward_queries[(triton.cdiv(queries, ROWS), heads)](
        *(query, key, value, out, slope, lse, delta, of_query, segments_q, cum_seq_k, *numbers, *strides, of_query.stride(0)),
        **constants,
    )
    _backward_keys[(triton.cdiv(key.size(0), COLUMNS), heads)](
        *(query, key, value, slope, lse, delta, of_key, of_value, segments_k, cum_seq_q, *numbers, *strides, of_key.stride(0)),
        **constants,
    )
    return grads


@attend_pieces_backward.register_fake
def _(slope: Tensor, parts: list[Tensor], *rest: Any) -> list[Tensor]:
    return [part.new_empty(part.shape) for part in parts]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    parts, *where = inputs[:6]
    ctx.save_for_backward(*parts, *where, *output)
    ctx.parts, ctx.rest = len(parts), inputs[6:]
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, slope: Tensor, _: Tensor) -> tuple[list[Tensor] | None, ...]:
    parts, rest = list(ctx.saved_tensors[: ctx.parts]), ctx.saved_tensors[ctx.parts :]
    return attend_pieces_backward(slope, parts, *rest, *ctx.rest), *([None] * 8)


attend_pieces.register_autograd(_differentiate, setup_context=_keep)


def _apart(parts: Sequence[Tensor]) -> list[Tensor]:
    """Queries, keys and values [tokens, H, D]."""
    return [each for part in parts for each in part.unbind(1)]


def _side_by_side(part: Tensor) -> Tensor:
    """The same with contiguous channels."""
    return part if part.stride(-1) == 1 else part.contiguous()


def _strides(*parts: Tensor) -> list[int]:
    """Strides between tokens and between heads."""
    return [part.stride(axis) for part in parts for axis in (0, 1)]


def _numbers(query: Tensor, key: Tensor, share: float, longest: int) -> tuple[float | int, ...]:
    scale = 1 / (LN2.value * query.size(-1) ** 0.5)
    return share, scale, query.size(0), key.size(0), power_of_two(longest)


def _constants(is_causal: bool, seed: Tensor | None, width: int) -> dict[str, Any]:
    tile = {"WIDTH": width, "ROWS": ROWS, "COLUMNS": COLUMNS, "num_warps": WARPS, "num_stages": STAGES}
    return {"CAUSAL": is_causal, "DROPS": seed is not None, **tile}


CELLS, DECODING_WARPS = 16, 1
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
        num_warps=DECODING_WARPS,
    )
    return out


@attend_step.register_fake
def _(query: Tensor, *rest: Tensor | None) -> Tensor:
    return query.new_empty(query.shape)
