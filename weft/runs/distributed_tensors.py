"""Tensors that are divided among processes (`train.shard`): the rows of this process, the whole, and back.

A tensor of one process passes through unchanged, so the same code reads and writes both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def divided(tensor: Tensor) -> TypeIs[DTensor]:
    """Whether a tensor is divided. Imports nothing unless one may be: torch's module takes a third as long as torch itself."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds. It shares the tensor's memory."""
    return tensor.to_local() if divided(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor. All processes have to call this together if it is divided."""
    return tensor.full_tensor() if divided(tensor) else tensor


def divided_like(tensor: Tensor, values: Tensor) -> Tensor:
    """`values`, whole in every process, divided as `tensor` is if they have its shape. What is divided stays as it is."""
    if not divided(tensor) or divided(values) or values.shape != tensor.shape:
        return values
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(values.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


@torch.no_grad()
def fill(tensor: Tensor, values: Tensor) -> None:
    """Copies `values`, whole in every process, into the part of a tensor that this process holds."""
    local(tensor).copy_(local(divided_like(tensor, values)))


def each_whole(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """All of each tensor, one after the other, so that never more than one is in memory. All processes take part."""
    for name, tensor in tensors.items():
        yield name, whole(tensor.detach())
