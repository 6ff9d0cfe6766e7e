"""Several processes that train one model, started by torchrun; and the choice of the device.

Gradients are sums until the last micro-batch of an update; then one pass adds them over the processes and divides by the
number of tokens of all. So 2 processes × 2 micro-batches equal 1 × 4, whatever the sizes of the batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.errors import ConfigError, DeviceError

T = TypeVar("T")

PATIENCE = timedelta(days=7)
"""How long processes wait for the first one, which may be validating. A dead one is noticed by its closed connection."""

BUCKET = 1 << 24
"""Elements of the flat buffer in which gradients are summed: 64 MiB in float32, whatever the size of the model."""


@dataclass(frozen=True)
class World:
    """This process among all that train the model.

    control  connects the processes' hosts (gloo), so that agreeing on something never waits for the devices' work.
    """

    rank: int
    size: int
    device: torch.device
    control: dist.ProcessGroup | None = None

    @property
    def first(self) -> bool:
        """True in the one process that writes files, logs and validates."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """True in every process if `flag` is true in one of them."""
        if self.size == 1:
            return flag
        said = torch.tensor(int(flag))
        dist.all_reduce(said, dist.ReduceOp.MAX, group=self.control)
        return bool(said)

    def broadcast(self, value: T) -> T:
        """The first process's `value`, in every process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def add(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sums over all processes by name; a name that a process does not have counts 0 there."""
        if self.size == 1:
            return dict(values)
        every: list[dict[str, float]] = [{}] * self.size
        dist.all_gather_object(every, dict(values), group=self.control)
        names = sorted({name for one in every for name in one})
        return {name: sum(one.get(name, 0.0) for one in every) for name in names}

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """In the first process the tensors of all, by name; in the others their own."""
        if self.size == 1:
            return dict(tensors)
        every: list[dict[str, Tensor]] | None = [{}] * self.size if self.first else None
        dist.gather_object({name: tensor.cpu() for name, tensor in tensors.items()}, every, dst=0, group=self.control)
        return {name: tensor for one in every or [dict(tensors)] for name, tensor in one.items()}

    def share(self, accumulate: int) -> range:
        """Which of an update's `accumulate` micro-batches are this process's: every size-th."""
        if accumulate % self.size:
            wanted = -(-accumulate // self.size) * self.size
            raise ConfigError(
                f"train.accumulate: {accumulate} micro-batches a step cannot be shared by {self.size} processes; "
                f"set it to a multiple of {self.size}, such as {wanted} (with a train.batch_tokens that keeps the step's size)"
            )
        return range(self.rank, accumulate, self.size)

    def close(self) -> None:
        """Wait for the others and leave them."""
        if self.size > 1:
            dist.barrier(group=self.control)
            dist.destroy_process_group()


def start(device: str = "auto") -> World:
    """Join the processes that torchrun started, or be the only one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(0, 1, choose_device(device))
    chosen = choose_device(device, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    return World(dist.get_rank(), size, chosen, dist.new_group(backend="gloo", timeout=PATIENCE))


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    """The device that `train.device` names: "auto" is the GPU if there is one. Under torchrun each process has its own GPU."""
    there = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if name == "auto":
        name = "cuda" if there else "cpu"
    if name == "cuda" and there:
        name = f"cuda:{torch.cuda.current_device() if local_rank is None else local_rank}"
    if name not in ["cpu", *there]:
        raise DeviceError(f"train.device: there is no device {name!r}; this machine has {', '.join(['cpu', *there])}")
    return torch.device(name)


def same_start(model: nn.Module, world: World) -> None:
    """Give every process the first one's weights and buffers."""
    if world.size > 1:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)


@torch.no_grad()
def sum_gradients(groups: Mapping[str, Sequence[nn.Parameter]], sums: Tensor, world: World, bucket: int = BUCKET) -> Tensor:
    """Add gradients and `sums` over all processes, and divide each group's gradients by its count.

    sums  [2, groups] float64: the groups' losses and counts in this update, this process's in, everyone's out.

    A gradient that is missing counts as zero, so that a parameter used in one process only is right in all. A count of
    zero divides by 1. With one process nothing is copied.
    """
    for parameter in (parameter for group in groups.values() for parameter in group):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if world.size > 1:
        dist.all_reduce(sums)
        for bundle in _buckets([parameter for group in groups.values() for parameter in group], bucket):
            _sum_bundle(bundle)
    for group, count in zip(groups.values(), sums[1].clamp_min(1)):
        gradients = [parameter.grad for parameter in group if parameter.grad is not None]
        torch._foreach_div_(gradients, count.to(gradients[0].dtype))
    return sums


def _buckets(parameters: Sequence[nn.Parameter], size: int) -> Iterator[list[Tensor]]:
    """Gradients in their order, cut into lists of one dtype and of at most `size` elements (or one larger tensor)."""
    bundle: list[Tensor] = []
    filled = 0
    for parameter in parameters:
        gradient = parameter.grad
        assert gradient is not None
        if bundle and (filled + gradient.numel() > size or gradient.dtype != bundle[0].dtype):
            yield bundle
            bundle, filled = [], 0
        bundle.append(gradient)
        filled += gradient.numel()
    if bundle:
        yield bundle


def _sum_bundle(gradients: list[Tensor]) -> None:
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [part.view_as(gradient) for part, gradient in zip(parts, gradients)])
