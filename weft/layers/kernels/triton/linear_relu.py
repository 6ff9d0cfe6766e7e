"""max(0, x Wᵀ + b) in one product; the backward pass computes the gradients before the ReLU and of b in one pass.

Shapes: N rows · I inputs · O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.data.batch import power_of_two
from weft.layers.kernels import processors

COLUMNS, ROWS, WARPS, PROGRAMS = 512, 2, 2, 8
"""The largest width of a tile, its rows, warps per tile, and programs per multiprocessor."""


@triton.jit
def _backward(slope, out, grad, sums, rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A grid-stride loop over tiles of some columns, which also sums their rows."""
    program = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for first in range(program * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
        passed = tl.load(out + place, mask=inside, other=0.0) > 0
        wanted = tl.where(passed, tl.load(slope + place, mask=inside, other=0.0), 0.0)
        tl.store(grad + place, wanted, mask=inside)
        total += tl.sum(wanted.to(tl.float32), 0)
    tl.store(sums + program * WIDTH + column, total, mask=column < WIDTH)


@torch.library.custom_op("weft::linear_relu", mutates_args=())
def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max(0, x Wᵀ + b) of rows x [N, I], weight [O, I] and bias [O], all in one precision: [N, O]."""
    return torch._addmm_activation(bias, x, weight.t())


@linear_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.size(0), weight.size(0))


@torch.library.custom_op("weft::relu_backward", mutates_args=())
def relu_backward(slope: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """For out = max(0, y) [N, O]: the gradient of y, and its sum over rows [O] in float32."""
    slope = slope.contiguous()
    rows, width = out.shape
    wide = min(COLUMNS, power_of_two(width))
    blocks = triton.cdiv(width, wide)
    programs = min(triton.cdiv(rows, ROWS), max(1, PROGRAMS * processors(out.device) // blocks))
    grad = torch.empty_like(out)
    sums = torch.empty(programs, width, dtype=torch.float32, device=out.device)
    _backward[(programs, blocks)](slope, out, grad, sums, rows, WIDTH=width, ROWS=ROWS, COLUMNS=wide, num_warps=WARPS)
    return grad, sums.sum(0)


@relu_backward.register_fake
def _(slope: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    return out.new_empty(out.shape), out.new_empty(out.size(1), dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2], output)


def _differentiate(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, out = ctx.saved_tensors
    grad, total = relu_backward(slope, out)
    return grad @ weight, grad.t() @ x, total.to(weight.dtype)


linear_relu.register_autograd(_differentiate, setup_context=_keep)
