"""Data-parallel training in several processes, started by torchrun.

Gradients are sums until the last micro-batch of an update. One pass then adds them over all processes and divides by the
total number of tokens. So 2 processes × 2 micro-batches equal 1 × 4, whatever the batch sizes.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.nn.utils import get_total_norm

from weft.errors import ConfigError
from weft.runs.device_and_precision import choose_device
from weft.runs.distributed_tensors import divided, local
from weft.training.energy import EnergyMeter

T = TypeVar("T")

PATIENCE = timedelta(days=7)
"""The time that processes wait for the first one, which may be validating. A crash closes the connection and ends the wait."""

BUCKET = 1 << 24
"""Size in elements of the flat buffer that sums gradients: 64 MiB in float32, whatever the model size."""


@dataclass(frozen=True)
class World:
    """This process among all processes that train the model.

    control  a gloo group between the hosts, so that control messages never wait for work on the devices
    """

    rank: int
    size: int
    device: torch.device
    control: dist.ProcessGroup | None = None

    @property
    def first(self) -> bool:
        """True in the only process that writes files, logs and validates."""
        return self.rank == 0

    def meter(self) -> EnergyMeter | None:
        """Counts energy from now on; None if there are several processes, since a machine counts for all of them at once."""
        return EnergyMeter(self.device) if self.size == 1 else None

    def any(self, flag: bool) -> bool:
        """True in every process if `flag` is true in one of them."""
        if self.size == 1:
            return flag
        flags = torch.tensor(int(flag))
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.control)
        return bool(flags)

    def broadcast(self, value: T) -> T:
        """The first process's `value`, in every process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def every(self, value: T) -> list[T]:
        """The values of all processes, in the order of their ranks, in every process."""
        if self.size == 1:
            return [value]
        values = [value] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def add(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sums values over all processes by name. A name that is missing in a process counts as 0 there."""
        if self.size == 1:
            return dict(values)
        every = self.every(dict(values))
        names = sorted({name for one in every for name in one})
        return {name: sum(one.get(name, 0.0) for one in every) for name in names}

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gathers the named tensors of all processes in the first one; the others get their own."""
        if self.size == 1:
            return dict(tensors)
        every: list[dict[str, Tensor]] | None = [{}] * self.size if self.first else None
        dist.gather_object({name: tensor.cpu() for name, tensor in tensors.items()}, every, dst=0, group=self.control)
        return {name: tensor for one in every or [dict(tensors)] for name, tensor in one.items()}

    def share(self, accumulate: int) -> range:
        """The indices of this process's micro-batches among the `accumulate` ones of an update: every `size`-th."""
        if accumulate % self.size:
            wanted = -(-accumulate // self.size) * self.size
            raise ConfigError(
                f"train.accumulate: {accumulate} micro-batches per step cannot be divided among {self.size} processes; "
                f"set it to a multiple of {self.size}, such as {wanted} (adapt train.batch_tokens to keep the size of a step)"
            )
        return range(self.rank, accumulate, self.size)

    def close(self) -> None:
        """Waits for all processes and leaves the group."""
        if self.size > 1:
            dist.barrier(group=self.control)
            dist.destroy_process_group()


def restarts() -> int:
    """The number of restarts of this process by torchrun, with the same arguments, because one of the processes was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def join_processes(device: str = "auto") -> World:
    """Joins the processes that torchrun started; without torchrun, a world of one process."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(0, 1, choose_device(device))
    chosen = choose_device(device, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # torchrun keeps its store when it starts processes again, with the addresses of those that were lost.
    store, rank, size = next(rendezvous("env://"))
    store = PrefixStore(f"start-{restarts()}", store)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", store=store, rank=rank, world_size=size)
    return World(dist.get_rank(), size, chosen, dist.new_group(backend="gloo", timeout=PATIENCE))


def same_start(model: nn.Module, world: World) -> None:
    """Copies the weights and buffers of the first process to all others."""
    if world.size > 1:
        for tensor in model.state_dict().values():
            if not divided(tensor):  # each process has its own part of those
                dist.broadcast(tensor, src=0)


@torch.no_grad()
def sum_gradients(
    groups: Mapping[str, Sequence[nn.Parameter]], sums: Tensor, world: World, bucket: int = BUCKET
) -> list[list[Tensor]]:
    """Adds gradients and `sums` over all processes, and divides each group's gradients by its count.

    sums  [2, groups] float64: losses and counts of each group in this update; of this process in, of all processes out

    Returns the gradients of each group; of a sharded model, the part of this process, which the backward pass has added up. A
    missing gradient counts as zero, so a parameter that only one process uses is still right in all. A frozen parameter has no
    gradient. A count of zero divides by 1. With one process nothing is copied.
    """
    gradients: list[list[Tensor]] = []
    apart: list[Tensor] = []
    for group in groups.values():
        for parameter in group:
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        found = [parameter.grad for parameter in group if parameter.grad is not None]
        gradients.append([local(gradient) for gradient in found])
        apart += [gradient for gradient in found if not divided(gradient)]
    if world.size > 1:
        dist.all_reduce(sums)
        for bundle in _buckets(apart, bucket):
            flat = torch.cat([gradient.flatten() for gradient in bundle])
            dist.all_reduce(flat)
            parts = flat.split([gradient.numel() for gradient in bundle])
            torch._foreach_copy_(bundle, [part.view_as(gradient) for part, gradient in zip(parts, bundle)])
    for each, count in zip(gradients, sums[1].clamp_min(1)):
        torch._foreach_div_(each, count.to(each[0].dtype))
    return gradients


@torch.no_grad()
def gradient_norm(gradients: Sequence[Tensor], *, sharded: bool) -> Tensor:
    """The norm of the gradients of a group; over all processes, if each has a part of them."""
    norm = get_total_norm(gradients)
    if sharded:
        norm = norm.square()
        dist.all_reduce(norm)
        norm = norm.sqrt()
    return norm


@torch.no_grad()
def clip_gradients(gradients: Sequence[Tensor], limit: float, norm: Tensor) -> None:
    """Shortens gradients of this norm to `limit`, if they are longer."""
    torch._foreach_mul_(list(gradients), (limit / (norm + 1e-6)).clamp(max=1.0))


def _buckets(gradients: Sequence[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Gradients in order, in lists of one dtype and at most `size` elements (or a single larger tensor)."""
    bundle: list[Tensor] = []
    filled = 0
    for gradient in gradients:
        if bundle and (filled + gradient.numel() > size or gradient.dtype != bundle[0].dtype):
            yield bundle
            bundle, filled = [], 0
        bundle.append(gradient)
        filled += gradient.numel()
    if bundle:
        yield bundle
