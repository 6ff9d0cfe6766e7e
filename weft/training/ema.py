"""An exponential moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from weft.runs.distributed_tensors import local


class Ema:
    """average ← decay · average + (1 − decay) · weights after every update (Polyak & Juditsky 1992).

    The decay grows as min(decay, (1 + update) / (10 + update)), so that the average soon forgets the initial weights. Only
    parameters that are trained are averaged, not frozen ones and not buffers.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._parameters = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.average: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self, update: int, scheduled: float) -> None:
        """Adds the weights after an update. The decay is meant for as many updates as the schedule has steps.

        scheduled: the position in the schedule. If it is behind the number of updates, the average reaches back further.
        """
        wanted = self.decay if scheduled == update else max(0.0, 1 - (1 - self.decay) * scheduled / update)
        decay = min(wanted, (1 + update) / (10 + update))
        averages, weights = ([local(each) for each in parts.values()] for parts in (self.average, self._parameters))
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the block the model holds the average; afterwards it has its own weights again, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # One tensor at a time and in place, so that there is no third copy of the weights and addresses stay the same.
        for name, parameter in self._parameters.items():
            kept = parameter.clone()
            parameter.copy_(self.average[name])
            self.average[name].copy_(kept)
