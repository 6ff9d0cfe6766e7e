"""Compiles the blocks of a model for training, where that pays."""

from __future__ import annotations

import torch
from torch import nn

from weft.config.sections import TrainSection
from weft.layers.kernels import triton_available, try_out
from weft.models.base import Network

LARGE = 30_000_000
"""Number of parameters from which compiling is worth half a minute. Smaller models have short steps and short trainings."""


def compile_blocks(model: nn.Module, config: TrainSection, device: torch.device) -> bool:
    """Compiles the blocks of a model on `device` in place, if the configuration says so. Returns whether it did."""
    if not compiles(model, config, device):
        return False
    try_out(device)
    for block in model.repeated if isinstance(model, Network) else [model]:
        block.compile()
    return True


def compiles(model: nn.Module, config: TrainSection, device: torch.device) -> bool:
    """Resolves train.compile; "auto" means where compiling is known to pay."""
    if config.compile != "auto":
        return config.compile
    # Batches of ever different sizes would make the compiler recompile.
    if device.type != "cuda" or config.packed is not True or not isinstance(model, Network):
        return False
    return model.compiles and model.count_parameters() >= LARGE and triton_available(next(model.parameters()))
