"""What a decoder is fed while it learns: the truth, its own predictions, or a mixture of both.

Every kind decides first which tokens are fed, without gradient; then they are fed as in teacher forcing, with gradient, in one
pass. So each works for every model, and dropout is drawn anew in each pass. Position t is fed the truth y_{t−1} with
probability ε, else the prediction for t − 1; the first is always BOS.

Shapes: B rows · T target positions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from weft.batch import Batch
from weft.errors import ConfigError
from weft.models.base import Model
from weft.objectives.likelihoods import Choice, predictions
from weft.registry import Among, build

Probability = Annotated[float, Field(ge=0, le=1)]
Decaying = Annotated[dict[str, Any], Among("weft.objectives:DECAYS")]


class Decay(ABC):
    """ε, the probability of being fed the truth, as a function of the number i of updates made before."""

    @abstractmethod
    def __call__(self, update: int) -> float:
        """ε in the update of this number, the first being 1."""


class LinearDecay(Decay):
    """ε = max(floor, start − slope · i): Bengio et al. 2015.

    start: ε at first
    slope: how much it falls an update
    floor: ε at the end
    """

    def __init__(
        self, *, start: Probability = 1.0, slope: Annotated[float, Field(ge=0)] = 2e-4, floor: Probability = 0.0
    ) -> None:
        self.start, self.slope, self.floor = start, slope, floor

    def __call__(self, update: int) -> float:
        return max(self.floor, self.start - self.slope * (update - 1))


class ExponentialDecay(Decay):
    """ε = baseⁱ: Bengio et al. 2015.

    base: what ε is multiplied by in each update
    """

    def __init__(self, *, base: Probability = 0.9997) -> None:
        self.base = base

    def __call__(self, update: int) -> float:
        return float(self.base ** (update - 1))


class InverseSigmoidDecay(Decay):
    """ε = k / (k + exp(i / k)): Bengio et al. 2015. It is one half after k · ln k updates.

    k: how slowly it falls
    """

    def __init__(self, *, k: Annotated[float, Field(ge=1)] = 500.0) -> None:
        self.k = k

    def __call__(self, update: int) -> float:
        # e^-x / (e^-x + 1/k), which does not overflow.
        falling = math.exp(-(update - 1) / self.k)
        return falling / (falling + 1 / self.k)


class Sampling(ABC):
    """Chooses what a decoder is fed.

    steady: the same operations in every update.
    """

    steady = False

    @abstractmethod
    def inputs(self, model: Model, batch: Batch, update: int) -> list[Tensor]:
        """[B, T] token ids in place of `batch.target`, BOS first; if there are several, the model learns from each of them."""


class NoSampling(Sampling):
    """Teacher forcing: the true tokens are fed."""

    steady = True

    def inputs(self, model: Model, batch: Batch, update: int) -> list[Tensor]:
        return [batch.target]


class StepSampling(Sampling):
    """Scheduled sampling: token by token, a prediction is made from what was fed before it (Bengio et al. 2015).

    decay: how the share of true tokens falls
    choice: whether the likeliest token is predicted, or one is drawn
    """

    def __init__(self, *, decay: Decaying = {"kind": "inverse_sigmoid"}, choice: Choice = "best") -> None:  # noqa: B006
        self.decay: Decay = build("weft.objectives:DECAYS", decay)
        self.choice: Choice = choice

    def inputs(self, model: Model, batch: Batch, update: int) -> list[Tensor]:
        return [step_by_step(model, batch, self.decay(update), self.choice)]


class FreeRunning(Sampling):
    """Free running: after BOS all that is fed are predictions, made token by token.

    choice: whether the likeliest token is predicted, or one is drawn
    """

    def __init__(self, *, choice: Choice = "best") -> None:
        self.choice: Choice = choice

    def inputs(self, model: Model, batch: Batch, update: int) -> list[Tensor]:
        return [step_by_step(model, batch, 0.0, self.choice)]


class TwoPassSampling(Sampling):
    """Scheduled sampling in two passes: predictions are made from the truth, for all tokens at once (Mihaylova & Martins 2019).

    decay: how the share of true tokens falls
    choice: whether the likeliest token is predicted, or one is drawn
    both: whether the model learns from the truth as well, half and half
    """

    def __init__(
        self,
        *,
        decay: Decaying = {"kind": "inverse_sigmoid"},  # noqa: B006
        choice: Choice = "best",
        both: bool = False,
    ) -> None:
        self.decay: Decay = build("weft.objectives:DECAYS", decay)
        self.choice: Choice = choice
        self.both = both

    def inputs(self, model: Model, batch: Batch, update: int) -> list[Tensor]:
        mixed = all_at_once(model, batch, self.decay(update), self.choice, passes=1)
        return [batch.target, mixed] if self.both else [mixed]


class ParallelSampling(Sampling):
    """Scheduled sampling in parallel passes: predictions are made from what the pass before would feed (Duckworth et al. 2019).

    After as many passes as there are tokens, and with the likeliest as predictions, they are those made token by token.

    decay: how the share of true tokens falls
    choice: whether the likeliest token is predicted, or one is drawn
    passes: how often predictions are made
    """

    def __init__(
        self,
        *,
        decay: Decaying = {"kind": "inverse_sigmoid"},  # noqa: B006
        choice: Choice = "best",
        passes: PositiveInt = 2,
    ) -> None:
        self.decay: Decay = build("weft.objectives:DECAYS", decay)
        self.choice: Choice = choice
        self.passes = passes

    def inputs(self, model: Model, batch: Batch, update: int) -> list[Tensor]:
        return [all_at_once(model, batch, self.decay(update), self.choice, self.passes)]


@torch.no_grad()
def step_by_step(model: Model, batch: Batch, truth: float, choice: Choice) -> Tensor:
    """[B, T] inputs of which a share `truth` is true, the others predicted from the inputs before them."""
    if batch.target_layout.packed:
        raise ConfigError(
            "task.sampling: token by token, sentences cannot share a row; "
            "set train.packed: false, or sampling: two_pass or parallel"
        )
    if truth >= 1:
        return batch.target
    keep, fed = _kept(batch, truth), batch.target.clone()
    state = model.decoder.start(model.encode(batch.source, batch.source_layout))
    for t in range(fed.size(1) - 1):
        found = model.decoder.features(fed[:, t : t + 1], state)
        said, state = predictions(model.decoder, found.hidden, choice)[:, 0], found.state
        fed[:, t + 1] = fed[:, t + 1].where(keep[:, t + 1], said)
    return fed


@torch.no_grad()
def all_at_once(model: Model, batch: Batch, truth: float, choice: Choice, passes: int) -> Tensor:
    """[B, T] inputs of which a share `truth` is true, the others predicted from all inputs of the pass before."""
    if truth >= 1:
        return batch.target
    keep, fed = _kept(batch, truth), batch.target
    encoded = model.encode(batch.source, batch.source_layout)
    for _ in range(passes):
        found = model.decoder.features(fed, model.decoder.start(encoded), batch.target_layout)
        fed = batch.target.where(keep, predictions(model.decoder, found.hidden, choice).roll(1, 1))
    return fed


def _kept(batch: Batch, truth: float) -> Tensor:
    """[B, T] bool: where the truth is fed: at the first token of each sentence, in padding, and by chance."""
    layout = batch.target_layout
    drawn = torch.rand(layout.positions.shape, device=layout.positions.device) < truth
    return drawn | (layout.positions == 0) | ~layout.ok
