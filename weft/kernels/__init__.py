"""Kernels of our own for GPUs, where torch has none that suits short sentences and large vocabularies.

They are written in Triton, which comes with torch for CUDA. Each stands beside a plain way to compute the same, which serves
where there is no Triton. A file imports Triton at its top, so it is imported only after `serve` has said yes.
"""

from __future__ import annotations

import importlib.util
from functools import cache

from torch import Tensor


def serve(tensor: Tensor) -> bool:
    """Whether kernels can work on a tensor where it lies."""
    return tensor.device.type == "cuda" and _triton()


@cache
def _triton() -> bool:
    return importlib.util.find_spec("triton") is not None
