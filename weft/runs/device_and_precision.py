"""The device of a run, and mixed precision: which computations are done in bf16."""

import torch

from weft.errors import DeviceError


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    """The device called `name`. "auto" is the GPU if there is one; under torchrun, each process uses the GPU of its rank.

    "mps", the GPU of an Apple computer, has to be named: weft has not been measured on one.
    """
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    apple = ["mps"] if torch.backends.mps.is_available() else []
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    if name == "cuda" and gpus:
        name = f"cuda:{torch.cuda.current_device() if local_rank is None else local_rank}"
    if name not in (known := ["cpu", *gpus, *apple]):
        raise DeviceError(f"train.device: there is no device {name!r}; this machine has {', '.join(known)}")
    return torch.device(name)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context for computations in `precision`: "bf16" or "float32"."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
