"""norm(x + dropout(y)), the end of every post-norm Transformer sub-layer, in one pass, and its gradient in another.

Saved for the backward pass are the normalised sum before scale and shift, in half precision, and one number per row. Dropout
masks are computed from a seed inside the kernel, in the backward pass again.

Shapes: N rows · D width.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.data.batch import power_of_two
from weft.layers.kernels import processors

ENTRIES, WARPS, PROGRAMS = 1024, 2, 8
"""Entries of a tile, which consists of whole rows; warps per tile; and programs per multiprocessor in the backward pass."""


@triton.jit
def kept(seed, share, place):
    """Whether to keep each entry, given by its number (uint32), if a `share` of all is dropped. seed: pointer to the seed.

    Two rounds of multiplying and shifting mix the number with half of the seed each. Philox, which torch uses, takes ten rounds
    of four products.
    """
    number = tl.load(seed)
    mixed = (place ^ number.to(tl.uint32)) * 0x9E3779B1
    mixed = (mixed ^ (mixed >> 16)) * 0x21F0AAAD
    mixed = (mixed ^ (mixed >> 15) ^ (number >> 32).to(tl.uint32)) * 0x735A2D97
    mixed = (mixed ^ (mixed >> 15)) * 0x21F0AAAD
    # 24 bits, which float32 represents exactly.
    return ((mixed ^ (mixed >> 16)) >> 8).to(tl.float32) >= share * 16777216.0


@triton.jit
def _places(first, rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The rows and columns of a tile, the places of its entries, and which of them exist."""
    row, column = first + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    return row, column, place, (row < rows)[:, None] & (column < WIDTH)[None, :]


@triton.jit
def _forward(
    x, y, weight, bias, out, normed, spread, seed, share, least, rows,
    DROPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, column, place, inside = _places(tl.program_id(0) * ROWS, rows, WIDTH, ROWS, BLOCK)
    added = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        added = tl.where(kept(seed, share, place.to(tl.uint32)), added / (1.0 - share), 0.0)
    total = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + added
    off = tl.where(inside, total - (tl.sum(total, 1) / WIDTH)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(off * off, 1) / WIDTH + least)
    off = off * scale[:, None]
    wide = column < WIDTH
    by = tl.load(weight + column, mask=wide, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=wide, other=0.0).to(tl.float32)
    tl.store(out + place, (off * by[None, :] + shift[None, :]).to(out.dtype.element_ty), mask=inside)
    tl.store(normed + place, off.to(normed.dtype.element_ty), mask=inside)
    tl.store(spread + row, scale, mask=row < rows)


@triton.jit
def _backward(
    slope, normed, spread, weight, grad_x, grad_y, grad_weight, grad_bias, seed, share, rows,
    DROPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A grid-stride loop over tiles, which also sums the gradients of weight and bias over rows."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    by = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    of_weight = tl.zeros([BLOCK], tl.float32)
    of_bias = tl.zeros([BLOCK], tl.float32)
    for first in range(program * ROWS, rows, tl.num_programs(0) * ROWS):
        row, _, place, inside = _places(first, rows, WIDTH, ROWS, BLOCK)
        wanted = tl.load(slope + place, mask=inside, other=0.0).to(tl.float32)
        off = tl.load(normed + place, mask=inside, other=0.0).to(tl.float32)
        of_weight += tl.sum(wanted * off, 0)
        of_bias += tl.sum(wanted, 0)
        wanted = wanted * by[None, :]
        along = tl.sum(wanted * off, 1) / WIDTH
        level = tl.sum(wanted, 1) / WIDTH
        scale = tl.load(spread + row, mask=row < rows, other=0.0)
        grad = (wanted - level[:, None] - off * along[:, None]) * scale[:, None]
        tl.store(grad_x + place, grad.to(grad_x.dtype.element_ty), mask=inside)
        if DROPS:
            grad = tl.where(kept(seed, share, place.to(tl.uint32)), grad / (1.0 - share), 0.0)
        tl.store(grad_y + place, grad.to(grad_y.dtype.element_ty), mask=inside)
    tl.store(grad_weight + program * WIDTH + column, of_weight, mask=column < WIDTH)
    tl.store(grad_bias + program * WIDTH + column, of_bias, mask=column < WIDTH)


@torch.library.custom_op("weft::add_norm", mutates_args=())
def add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, share: float, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    """norm(x + dropout(y)) · weight + bias of rows […, D], the normalised rows, and 1 / standard deviation of each row [N].

    The result has the precision of y. A share of y is dropped according to a seed on the device; without a seed, none. least:
    added to variances.
    """
    x, y = x.contiguous(), y.contiguous()
    rows, width = y.numel() // y.size(-1), y.size(-1)
    out, normed = torch.empty_like(y), torch.empty_like(y)
    spread = torch.empty(rows, dtype=torch.float32, device=y.device)
    shape = _shape(seed, width)
    _forward[(triton.cdiv(rows, shape["ROWS"]),)](
        *(x, y, weight, bias, out, normed, spread, weight if seed is None else seed, share, least, rows), **shape
    )
    return out, normed, spread


@add_norm.register_fake
def _(x: Tensor, y: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows = y.numel() // y.size(-1)
    return y.new_empty(y.shape), y.new_empty(y.shape), y.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("weft::add_norm_backward", mutates_args=())
def add_norm_backward(
    slope: Tensor, normed: Tensor, spread: Tensor, weight: Tensor, seed: Tensor | None, share: float, of_x: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, in its own precision, of y, and of weight and bias [2, D]."""
    slope = slope.contiguous()
    width = normed.size(-1)
    rows = normed.numel() // width
    shape = _shape(seed, width)
    programs = min(triton.cdiv(rows, shape["ROWS"]), PROGRAMS * processors(slope.device))
    grad_x, grad_y = torch.empty_like(normed, dtype=of_x), torch.empty_like(normed)
    sums = torch.empty(2, programs, width, dtype=torch.float32, device=slope.device)
    _backward[(programs,)](
        *(slope, normed, spread, weight, grad_x, grad_y, *sums),
        *(weight if seed is None else seed, share, rows),
        **shape,
    )
    return grad_x, grad_y, sums.sum(1).to(weight.dtype)


@add_norm_backward.register_fake
def _(
    slope: Tensor, normed: Tensor, spread: Tensor, weight: Tensor, seed: Tensor | None, share: float, of_x: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    grads = normed.new_empty(normed.shape, dtype=of_x), normed.new_empty(normed.shape)
    return *grads, weight.new_empty(2, *weight.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, _, weight, _, seed, share, _ = inputs
    ctx.save_for_backward(*output[1:], weight, seed)
    ctx.share, ctx.of_x = share, x.dtype
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *grads, both = add_norm_backward(slope, *ctx.saved_tensors, ctx.share, ctx.of_x)
    return *grads, *both.unbind(), None, None, None


add_norm.register_autograd(_differentiate, setup_context=_keep)


def _shape(seed: Tensor | None, width: int) -> dict[str, Any]:
    block = power_of_two(width)
    tile = {"WIDTH": width, "ROWS": max(1, ENTRIES // block), "BLOCK": block, "num_warps": WARPS}
    return {"DROPS": seed is not None, **tile}
