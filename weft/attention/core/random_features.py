"""Random numbers that are part of a model and are redrawn during training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Draw = Callable[[torch.Generator | None], Tensor]
"""Draws the numbers, in float32, on the CPU; without a generator from torch's global one."""


class RedrawnBuffer(nn.Module):
    """The result of `draw`, redrawn about every `every` steps of training (0: never).

    The buffer holds the bits of float32 numbers as integers, so that neither averaging of checkpoints nor half precision
    changes them: the mean of several draws would be too short.
    """

    bits: Tensor

    def __init__(self, draw: Draw, every: int) -> None:
        super().__init__()
        self.draw, self.every = draw, every
        self.register_buffer("bits", draw(None).view(torch.int32))

    def forward(self) -> Tensor:
        return self.bits.view(torch.float32)

    def redraw(self, generator: torch.Generator) -> None:
        """Redraws with probability 1 / every. No counter is needed, so a resumed run redraws at the same steps."""
        if self.every and torch.rand((), generator=generator).item() * self.every < 1:
            self.bits.copy_(self.draw(generator).view(torch.int32))
