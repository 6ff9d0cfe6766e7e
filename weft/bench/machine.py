"""The machine: its description, timing on it, and its limits, measured by large matrix products and copies of memory."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from weft.bench.flop_counter import Cost
from weft.layers.int8 import Int8Linear
from weft.version import VERSION


def about(device: torch.device | None = None) -> dict[str, str]:
    """The date, the device (by default the GPU if there is one) and the versions."""
    cuda = torch.cuda.is_available() if device is None else device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else f"CPU ({platform.machine()}, {os.cpu_count()} cores)"
    facts = {"date": time.strftime("%Y-%m-%d"), "device": name, "python": platform.python_version()}
    return facts | {"torch": torch.__version__, "weft": VERSION}


def timed(work: Callable[[], object], device: torch.device, *, times: int, within: float) -> list[float]:
    """Seconds of each run: `times` runs, or as many as fit `within` that many seconds, at least one.

    To compare with limits, take the fastest: disturbances only make work slower.
    """
    seconds: list[float] = []
    while not seconds or (len(seconds) < times and sum(seconds) < within):
        finish(device)
        began = time.perf_counter()
        work()
        finish(device)
        seconds.append(time.perf_counter() - began)
    return seconds


def finish(device: torch.device) -> None:
    """Waits until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


PRODUCTS = {
    "cpu": ((512, 512, 512), (1024, 1024, 1024), (4096, 512, 2048)),
    "cuda": ((4096, 4096, 4096), (8192, 8192, 8192), (32768, 2048, 8192)),
}
"""Rows, inputs and outputs of the measured products; the fastest counts."""

COPIES = {"cpu": (1 << 16, 1 << 19, 1 << 22, 1 << 25, 1 << 28), "cuda": (1 << 24, 1 << 25, 1 << 26, 1 << 28, 1 << 31)}
"""Bytes read and written by the measured copies. Those that fit a cache are faster."""

AT_ONCE = {"cpu": 1 << 26, "cuda": 1 << 30}
"""Bytes per round of copies; a larger copy is a round."""

WITHIN = 0.5
"""Seconds for one measurement."""


@dataclass(frozen=True)
class Ceilings:
    """products: FLOP/s by precision · copies: bytes/s by the bytes that a copy reads and writes, from small to large."""

    products: dict[str, float]
    copies: dict[int, float]

    @property
    def memory(self) -> float:
        """Bytes/s of data that fits no cache."""
        return self.copies[max(self.copies)]

    def flops(self, precision: str) -> float:
        """FLOP/s. Some operations stay in float32, which is the faster precision on some CPUs."""
        return max(self.products[precision], self.products["float32"])

    def bandwidth(self, size: int) -> float:
        """Bytes/s for an operation that moves `size` bytes: the best of all copies of at least that size."""
        return max([rate for moved, rate in self.copies.items() if moved >= size], default=self.memory)

    def seconds(self, cost: Cost, precision: str) -> tuple[float, float]:
        """(by FLOPs, by bytes): lower bounds of the time. The larger of the two is the limit."""
        moving = sum(moved / self.bandwidth(size) for size, moved in cost.moved.items())
        return cost.flops / self.flops(precision), moving


@torch.inference_mode()
def measure_products(device: torch.device, precision: str, rounds: int) -> float:
    """FLOP/s of matrix products, the best of `rounds`."""
    return max(_product(shape, precision, device, rounds) for shape in PRODUCTS[device.type])


@torch.inference_mode()
def measure_copies(device: torch.device, rounds: int) -> dict[int, float]:
    """Bytes/s of copies by their size, the best of `rounds`."""
    return {size: _copy(size, device, rounds) for size in COPIES[device.type]}


def _product(shape: tuple[int, int, int], precision: str, device: torch.device, rounds: int) -> float:
    rows, inputs, outputs = shape
    x, weight = (torch.randn(size, inputs, device=device) for size in (rows, outputs))
    if precision == "bf16":
        x, weight = x.bfloat16(), weight.bfloat16()
    work = partial(Int8Linear(weight, None), x) if precision == "int8" else partial(torch.mm, x, weight.t())
    work()
    return 2 * rows * inputs * outputs / min(timed(work, device, times=rounds, within=WITHIN))


def _copy(size: int, device: torch.device, rounds: int) -> float:
    source = torch.zeros(size // 2, dtype=torch.uint8, device=device)
    target, times = torch.ones_like(source), max(1, AT_ONCE[device.type] // size)
    # Several copies on a GPU, where one would mostly measure the launch. On a CPU, single ones are disturbed less.
    copies = times if device.type == "cuda" else 1

    def work() -> None:
        for _ in range(copies):
            target.copy_(source)

    work()
    return copies * size / min(timed(work, device, times=rounds * times // copies, within=WITHIN))
