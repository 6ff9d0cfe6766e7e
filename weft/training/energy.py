"""The energy of a training, as the counters of processor and GPU tell it: with everything else that runs on them.

Linux has the counters of processors of Intel and AMD (RAPL) as files, which only root may read on many machines; NVIDIA's
library has those of GPUs since Volta (2017). Where there is no counter, nothing is measured, and nothing is estimated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

POWERCAP = Path("/sys/class/powercap")

NVML = "libnvidia-ml.so.1"


@dataclass
class Counter:
    """A counter of joules that begins anew at `most`."""

    name: str
    read: Callable[[], float]
    most: float = float("inf")
    last: float = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.read()

    def since(self) -> float:
        """Joules since the last call. More than one round of the counter in between cannot be told."""
        before, self.last = self.last, self.read()
        return self.last - before if self.last >= before else self.last - before + self.most


class EnergyMeter:
    """Joules since the meter was made, by the counters that can be read. device: the GPU that counts, if it is one."""

    def __init__(self, device: torch.device, folder: Path = POWERCAP) -> None:
        self.counters = [*processor_counters(folder), *gpu_counters(device)]

    @property
    def names(self) -> str:
        """The parts that are measured, such as "processor and GPU"; empty if nothing is."""
        return " and ".join(dict.fromkeys(each.name for each in self.counters))

    def since(self) -> float:
        """Joules since the last call. A counter that fails is dropped."""
        joules = 0.0
        for counter in [*self.counters]:
            try:
                joules += counter.since()
            except OSError:
                self.counters.remove(counter)
        return joules


def processor_counters(folder: Path = POWERCAP) -> list[Counter]:
    """The counters of the processor's packages; none if there are none or they cannot be read."""
    found = []
    for package in sorted(folder.glob("intel-rapl:*")):
        if package.name.count(":") == 1:  # others are parts of a package
            with suppress(OSError, ValueError):
                most = _microjoules(package / "max_energy_range_uj")
                found.append(Counter("processor", partial(_microjoules, package / "energy_uj"), most))
    return found


def _microjoules(file: Path) -> float:
    """The joules that a file states in millionths."""
    return float(file.read_text("utf-8")) / 1e6


def gpu_counters(device: torch.device) -> list[Counter]:
    """The counter of a GPU of NVIDIA; none for another device."""
    if device.type != "cuda":
        return []
    try:
        library = ctypes.CDLL(NVML)
        handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
        name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
            return []

        def read() -> float:
            if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)):
                raise OSError("the GPU does not count energy")
            return millijoules.value / 1e3

        return [Counter("GPU", read)]
    except (OSError, AttributeError):
        return []
