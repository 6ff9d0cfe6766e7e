"""Random numbers that are part of a model and are drawn anew while it is trained."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Draw = Callable[[torch.Generator | None], Tensor]
"""Draws the numbers, in float32, on the CPU; without a generator from torch's own."""


class RedrawnBuffer(nn.Module):
    """What `draw` gives, drawn anew about every `every` steps of training (0: never).

    The buffer holds the bits of float32 numbers as integers. A mean over checkpoints is taken of everything that is a
    floating-point number, and the mean of draws is no draw: it is too short. Nor does half precision round them.
    """

    bits: Tensor

    def __init__(self, draw: Draw, every: int) -> None:
        super().__init__()
        self.draw, self.every = draw, every
        self.register_buffer("bits", draw(None).view(torch.int32))

    def forward(self) -> Tensor:
        return self.bits.view(torch.float32)

    def redraw(self, generator: torch.Generator) -> None:
        """Redraws with a chance of 1 / every: no counter has to be kept, so a resumed run redraws when it would have."""
        if self.every and torch.rand((), generator=generator).item() * self.every < 1:
            self.bits.copy_(self.draw(generator).view(torch.int32))
