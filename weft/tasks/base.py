"""The one interface between a task and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field
from torch import Tensor, nn

from weft.batch import Batch, Position
from weft.config.sections import Config, DecodeSection
from weft.data.batching import round_up
from weft.data.pairs import random_pairs
from weft.data.tokenizer import Tokenizer
from weft.errors import ConfigError
from weft.evaluation.metrics import Metric, make_metrics
from weft.models.base import Network, Sizes
from weft.models.composing import build_encoder_decoder
from weft.tasks.decoding import Translation
from weft.tasks.terms import Terms

Share = Annotated[float, Field(ge=0, lt=1)]


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


@dataclass(frozen=True)
class Headline:
    """The score of `evaluate` by which trained models of a task are compared: its key, how people call it, its direction."""

    key: str
    title: str
    higher_is_better: bool = True


LOSS = Headline("loss", "loss", higher_is_better=False)


class Task(ABC):
    """A task knows its data and its losses; the trainer knows neither.

    steady: whether `losses` asks for the same operations for all batches of one size, whatever the update and whatever is in
        them, so that they may be recorded once and replayed.
    headline: the score that says best how good a model is, where `evaluate` gives it; the loss does elsewhere.
    counts: what the count of a loss is of, and so what the speed of training is measured in.
    """

    steady: bool = False
    headline: Headline = LOSS
    counts: str = "target tokens"

    @abstractmethod
    def prepare(self) -> Sizes:
        """Makes the data ready, and says how large the model's vocabularies have to be. Called once, before all else."""

    def reopen(self) -> Sizes:
        """What `prepare` says, of a run that has been trained: its folder is read and, where a task can do without, no data."""
        return self.prepare()

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        """The model, with its first weights, that `spec` (the section model) describes; a task may make another one of it."""
        return build_encoder_decoder(spec, sizes)

    def check_length(self, model: Network, longest: int) -> None:
        """Raises ConfigError if texts of `longest` tokens (data.max_length) are more than the model has positions for."""
        limit = model.longest
        if limit is not None and longest >= limit:
            raise ConfigError(
                f"data.max_length: texts of {longest} tokens and their end do not fit the model's {limit} positions; "
                f"set data.max_length to at most {limit - 1}, or raise max_length of the model or of its mixers"
            )

    def widest(self, longest: int) -> int:
        """The most places that rows of texts of up to `longest` tokens are given where batches come in few sizes."""
        return round_up(longest + 1)

    @abstractmethod
    def batches(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        """Training batches without end, from `position` on; with each, the position of the one after it.

        The stream is the same for every process: the trainer takes what belongs to it.
        """

    @abstractmethod
    def losses(self, model: nn.Module, batch: Any, update: int) -> Iterator[Loss]:
        """What to minimise in the update of this number, the first being 1: all that a schedule inside a task may depend on.

        The trainer runs backward on each before it asks for the next.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Scores on the validation data: always `loss`, and whatever else the task can say; none if there is no such data."""

    def parameters(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """Which parameters each optimiser moves. A task whose losses name other optimisers than "model" says so here."""
        return {"model": [parameter for parameter in model.parameters() if parameter.requires_grad]}

    def carried(self) -> dict[str, Tensor]:
        """What goes on from update to update beside the model, for checkpoints; in each process under names of its own."""
        return {}

    def carry(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027 — most tasks carry nothing
        """Goes on with what `carried` gave in all processes together when a checkpoint was written."""

    def describe(self) -> dict[str, Any]:
        """Facts worth a line in the log: how many pairs, what was dropped."""
        return {}

    def made_up(self, length: int, sizes: Sizes, rows: int = 1, *, packed: bool = False, rounded: bool = False) -> Batch:
        """Rows of `length` made-up tokens, on both sides where there are two: what time and memory are measured by.

        They are packed or rounded (see train.packed, train.rounded) where the task trains on such batches at all.
        """
        return random_pairs((sizes.source, sizes.target), (length, length), rows, packed=packed, rounded=rounded)


class Decodes(Protocol):
    """A trained model at work on lines of text."""

    def translate(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        terms: Iterable[Terms] | None = None,
        attention: bool = False,
        first_line: int = 1,
    ) -> Iterator[Translation]:
        """Something for each line, in order; lines are read as they are needed."""


class TextTask(Task):
    """A task whose trained runs are put to work on lines of text, and scored against a second text for each."""

    source: Tokenizer
    target: Tokenizer

    def vocabularies(self) -> list[str]:
        """Identifies what the model reads and writes; it must be the same in all models of an ensemble."""
        return [self.source.digest(), self.target.digest()]

    @abstractmethod
    def join(self, models: Sequence[Network]) -> Network:
        """Several trained models as one, an ensemble."""

    @abstractmethod
    def decoding(self, model: Network, options: DecodeSection, warn: Callable[[str], None] | None = None) -> Decodes:
        """A trained model ready for lines of text."""

    def metrics(self, *, tokenize: str = "13a", lowercase: bool = False) -> list[Metric]:
        """What a test scores; the options are sacreBLEU's."""
        return make_metrics(tokenize=tokenize, lowercase=lowercase)
