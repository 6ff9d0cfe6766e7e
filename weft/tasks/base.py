"""The one interface between a task and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from weft.batch import Batch, Position
from weft.config import Config
from weft.models.base import Sizes


@dataclass(frozen=True)
class Setting:
    """What a task is built for: a run's configuration and folder, and someone to tell how it goes."""

    config: Config
    run: Path
    tell: Callable[[str], None] = lambda message: None


@dataclass
class Loss:
    """A sum and what to divide it by. Both stay on the device, so accumulation and several processes are exact.

    Losses for one optimiser share one denominator: the sum of their counts over micro-batches and processes. `metrics` are
    sums as well, logged divided by that denominator.
    """

    total: Tensor
    count: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    optimizer: str = "model"


class Task(ABC):
    """A task knows its data and its losses; the trainer knows neither.

    steady: whether `losses` asks for the same operations for all batches of one size, whatever the update and whatever is in
        them, so that they may be recorded once and replayed.
    """

    steady: bool = False

    @abstractmethod
    def prepare(self) -> Sizes:
        """Makes the data ready, and says how large the model's vocabularies have to be. Called once, before all else."""

    @abstractmethod
    def batches(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        """Training batches without end, from `position` on; with each, the position of the one after it.

        The stream is the same for every process: the trainer takes what belongs to it.
        """

    @abstractmethod
    def losses(self, model: nn.Module, batch: Batch, update: int) -> Iterator[Loss]:
        """What to minimise in the update of this number, the first being 1: all that a schedule inside a task may depend on.

        The trainer runs backward on each before it asks for the next.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Scores on the validation data: always `loss`, and whatever else the task can say; none if there is no such data."""

    def parameters(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """Which parameters each optimiser moves. A task whose losses name other optimisers than "model" says so here."""
        return {"model": [parameter for parameter in model.parameters() if parameter.requires_grad]}

    def describe(self) -> dict[str, Any]:
        """Facts worth a line in the log: how many pairs, what was dropped."""
        return {}
