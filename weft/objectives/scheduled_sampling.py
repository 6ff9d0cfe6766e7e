"""Scheduled sampling: what a decoder is fed in training: the truth, its own predictions, or a mixture.

Every kind first decides without gradient which tokens are fed. Then they are fed in one pass with gradient, as in teacher
forcing. So each kind works for every model, and each pass draws its own dropout. Position t is fed the truth y_{t−1} with
probability ε, otherwise the prediction for t − 1; the first token is always BOS.

Shapes: B rows · T target positions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from weft.batch import PairBatch
from weft.config.registry import Among, build
from weft.errors import ConfigError
from weft.models.base import Model
from weft.objectives.likelihoods import Choice, predictions

Probability = Annotated[float, Field(ge=0, le=1)]
Decaying = Annotated[dict[str, Any], Among("weft.objectives:DECAYS")]


class Decay(ABC):
    """ε, the probability of feeding the truth, as a function of the number i of earlier updates."""

    @abstractmethod
    def __call__(self, update: int) -> float:
        """ε in update number `update`, counted from 1."""


class LinearDecay(Decay):
    """ε = max(floor, start − slope · i): Bengio et al. 2015.

    start: ε at the beginning
    slope: how much it falls per update
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

    base: factor of ε per update
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

    steady: whether every update runs the same operations.
    """

    steady = False

    @abstractmethod
    def inputs(self, model: Model, batch: PairBatch, update: int) -> list[Tensor]:
        """[B, T] token ids in place of `batch.target`, BOS first. If there are several, the model learns from each."""


class NoSampling(Sampling):
    """Teacher forcing: feeds the true tokens."""

    steady = True

    def inputs(self, model: Model, batch: PairBatch, update: int) -> list[Tensor]:
        return [batch.target]


class StepSampling(Sampling):
    """Scheduled sampling token by token: each prediction depends on the tokens fed before it (Bengio et al. 2015).

    decay: how the share of true tokens falls
    choice: predict the most probable token, or a sample
    """

    def __init__(self, *, decay: Decaying = {"kind": "inverse_sigmoid"}, choice: Choice = "best") -> None:  # noqa: B006
        self.decay: Decay = build("weft.objectives:DECAYS", decay)
        self.choice: Choice = choice

    def inputs(self, model: Model, batch: PairBatch, update: int) -> list[Tensor]:
        return [step_by_step(model, batch, self.decay(update), self.choice)]


class FreeRunning(Sampling):
    """Free running: after BOS, feeds only predictions, made token by token.

    choice: predict the most probable token, or a sample
    """

    def __init__(self, *, choice: Choice = "best") -> None:
        self.choice: Choice = choice

    def inputs(self, model: Model, batch: PairBatch, update: int) -> list[Tensor]:
        return [step_by_step(model, batch, 0.0, self.choice)]


class TwoPassSampling(Sampling):
    """Scheduled sampling in two passes: predicts all tokens at once, from the truth (Mihaylova & Martins 2019).

    decay: how the share of true tokens falls
    choice: predict the most probable token, or a sample
    both: learn from the true tokens as well, with equal weight
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

    def inputs(self, model: Model, batch: PairBatch, update: int) -> list[Tensor]:
        mixed = all_at_once(model, batch, self.decay(update), self.choice, passes=1)
        return [batch.target, mixed] if self.both else [mixed]


class ParallelSampling(Sampling):
    """Scheduled sampling in parallel passes: each pass predicts from the input of the pass before (Duckworth et al. 2019).

    With as many passes as tokens, and the most probable tokens as predictions, it equals scheduled sampling token by token.

    decay: how the share of true tokens falls
    choice: predict the most probable token, or a sample
    passes: number of prediction passes
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

    def inputs(self, model: Model, batch: PairBatch, update: int) -> list[Tensor]:
        return [all_at_once(model, batch, self.decay(update), self.choice, self.passes)]


@torch.no_grad()
def step_by_step(model: Model, batch: PairBatch, truth: float, choice: Choice) -> Tensor:
    """[B, T] inputs: a share `truth` of true tokens, the others predicted from the inputs before them."""
    if batch.target_layout.packed:
        raise ConfigError(
            "task.sampling: sampling token by token does not work on packed rows; "
            "set train.packed: false, or sampling: two_pass or parallel"
        )
    if truth >= 1:
        return batch.target
    keep, fed = _kept(batch, truth), batch.target.clone()
    state = model.decoder.start(model.encode(batch.source))
    for t in range(fed.size(1) - 1):
        found = model.decoder.features(fed[:, t : t + 1], state)
        said, state = predictions(model.decoder, found.hidden, choice)[:, 0], found.state
        fed[:, t + 1] = fed[:, t + 1].where(keep[:, t + 1], said)
    return fed


@torch.no_grad()
def all_at_once(model: Model, batch: PairBatch, truth: float, choice: Choice, passes: int) -> Tensor:
    """[B, T] inputs: a share `truth` of true tokens, the others predicted from all inputs of the pass before."""
    if truth >= 1:
        return batch.target
    keep, fed = _kept(batch, truth), batch.target
    encoded = model.encode(batch.source)
    for _ in range(passes):
        found = model.decoder.features(fed, model.decoder.start(encoded), batch.target_layout)
        fed = batch.target.where(keep, predictions(model.decoder, found.hidden, choice).roll(1, 1))
    return fed


def _kept(batch: PairBatch, truth: float) -> Tensor:
    """[B, T] bool: where the truth is fed: at the first token of each sentence, in padding, and at random elsewhere."""
    layout = batch.target_layout
    drawn = torch.rand(layout.positions.shape, device=layout.positions.device) < truth
    return drawn | (layout.positions == 0) | ~layout.ok
