"""The machine and the versions that something was measured with."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata

import torch


def about(device: torch.device | None = None) -> dict[str, str]:
    """The date, the device (by default the GPU if there is one) and the versions."""
    cuda = torch.cuda.is_available() if device is None else device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else f"CPU ({platform.machine()}, {os.cpu_count()} cores)"
    try:
        version = metadata.version("weft")
    except metadata.PackageNotFoundError:
        version = "source tree"
    found = {"date": time.strftime("%Y-%m-%d"), "device": name, "python": platform.python_version()}
    return found | {"torch": torch.__version__, "weft": version}
