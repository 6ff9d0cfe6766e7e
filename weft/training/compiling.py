"""Whether a model is compiled for training, and which parts of it."""

from __future__ import annotations

import torch
from torch import nn

from weft.config import TrainSection
from weft.kernels import serve, try_out
from weft.models.base import Network

LARGE = 30_000_000
"""Parameters from which compiling is worth its half minute: steps of smaller models are short, and so are their trainings."""


def compile_blocks(model: nn.Module, config: TrainSection, device: torch.device) -> bool:
    """torch.compile, in place, of the blocks of a model that is on `device`, if the configuration wants it; whether it does."""
    if not compiles(model, config, device):
        return False
    try_out(device)
    for block in model.repeated if isinstance(model, Network) else [model]:
        block.compile()
    return True


def compiles(model: nn.Module, config: TrainSection, device: torch.device) -> bool:
    """What train.compile says; auto: where it is known to pay."""
    if config.compile != "auto":
        return config.compile
    # Rows of other sizes in every batch would make a compiler begin anew.
    if device.type != "cuda" or config.packed is not True or not isinstance(model, Network):
        return False
    return model.compiles and model.count_parameters() >= LARGE and serve(next(model.parameters()))
