"""The buffers of a model during an update: what a training pass writes into them counts only if the update does."""

import torch
from torch import Tensor, nn


class RunningBuffers:
    """The buffers of `model`, as they were before an update.

    Passes of training change buffers, such as the running statistics of a batch norm or the sums from which centroids move. If
    numbers are not finite they would stay there for ever, and passes that are repeated would be counted twice.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = list(model.buffers())
        self._before: list[Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Remembers what the buffers hold now."""
        self._before = [buffer.clone() for buffer in self._buffers]

    @torch.no_grad()
    def restore(self, bad: Tensor) -> None:
        """Writes back what was remembered if `bad` (a float scalar) is 1. The device decides, without waiting."""
        for buffer, before in zip(self._buffers, self._before):
            buffer.copy_(torch.where(bad > 0, before, buffer))
