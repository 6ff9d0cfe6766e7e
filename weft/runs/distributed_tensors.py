"""Tensors that are divided among processes (`train.shard`): the rows of this process, the whole, and back.

A tensor of one process passes through unchanged, so the same code reads and writes both.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds. It shares the tensor's memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor. All processes have to call this together if it is divided."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def divided_like(tensor: Tensor, values: Tensor) -> Tensor:
    """`values`, whole in every process, divided as `tensor` is if they have its shape."""
    if not isinstance(tensor, DTensor) or values.shape != tensor.shape:
        return values
    return distribute_tensor(values.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


@torch.no_grad()
def fill(tensor: Tensor, values: Tensor) -> None:
    """Copies `values`, whole in every process, into the part of a tensor that this process holds."""
    local(tensor).copy_(local(divided_like(tensor, values)))


def each_whole(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """All of each tensor, one after the other, so that never more than one is in memory. All processes take part."""
    for name, tensor in tensors.items():
        yield name, whole(tensor.detach())
