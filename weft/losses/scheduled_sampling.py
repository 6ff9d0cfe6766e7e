"""Scheduled sampling: what a decoder is fed in training: the truth, its own predictions, or a mixture.

Every kind first decides without gradient which tokens are fed. Then they are fed in one pass with gradient, as in teacher
forcing. So each kind works for every model, and each pass draws its own dropout. Position t is fed the truth y_{t−1} with
probability ε, otherwise the prediction for t − 1; the first token is always BOS.

Shapes: B rows · T target positions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from weft.config.registry import Among, build
from weft.data.batch import PairBatch
from weft.errors import ConfigError
from weft.layers.linear_norm_dropout import without_gradient
from weft.losses.log_likelihood import Choice, predictions
from weft.models.base import Model

Probability = Annotated[float, Field(ge=0, le=1)]
Decaying = Annotated[dict[str, Any], Among("weft.losses:DECAYS")]
DECAY: dict[str, Any] = {"kind": "inverse_sigmoid"}


Decay = Callable[[int], float]
"""ε, the probability of feeding the truth, in an update, which counts from 1; i is the number of earlier updates."""


def linear_decay(*, start: Probability = 1.0, slope: Annotated[float, Field(ge=0)] = 2e-4, floor: Probability = 0.0) -> Decay:
    """ε = max(floor, start − slope · i): Bengio et al. 2015.

    start: ε at the beginning
    slope: how much it falls per update
    floor: ε at the end
    """
    return lambda update: max(floor, start - slope * (update - 1))


def exponential_decay(*, base: Probability = 0.9997) -> Decay:
    """ε = baseⁱ: Bengio et al. 2015.

    base: factor of ε per update
    """
    return lambda update: float(base ** (update - 1))


def inverse_sigmoid_decay(*, k: Annotated[float, Field(ge=1)] = 500.0) -> Decay:
    """ε = k / (k + exp(i / k)): Bengio et al. 2015. It is one half after k · ln k updates.

    k: how slowly it falls
    """

    def decay(update: int) -> float:
        # e^-x / (e^-x + 1/k), which does not overflow.
        falling = math.exp(-(update - 1) / k)
        return falling / (falling + 1 / k)

    return decay


@dataclass(frozen=True)
class Sampling:
    """The tokens that a decoder is fed.

    inputs: model, batch and update → [B, T] token ids in place of `batch.target`, BOS first; the model learns from each of them
    capturable: whether every update runs the same operations, so that a CUDA graph can hold them
    """

    inputs: Callable[[Model, PairBatch, int], list[Tensor]]
    capturable: bool = False


def no_sampling() -> Sampling:
    """Teacher forcing: feeds the true tokens."""
    return Sampling(lambda model, batch, update: [batch.target], capturable=True)


def step_sampling(*, decay: Decaying = DECAY, choice: Choice = "best") -> Sampling:
    """Scheduled sampling token by token: each prediction depends on the tokens fed before it (Bengio et al. 2015).

    decay: how the share of true tokens falls
    choice: predict the most probable token, or a sample
    """
    truth: Decay = build("weft.losses:DECAYS", decay)
    return Sampling(lambda model, batch, update: [step_by_step(model, batch, truth(update), choice)])


def free_running(*, choice: Choice = "best") -> Sampling:
    """Free running: after BOS, feeds only predictions, made token by token.

    choice: predict the most probable token, or a sample
    """
    return Sampling(lambda model, batch, update: [step_by_step(model, batch, 0.0, choice)])


def two_pass_sampling(*, decay: Decaying = DECAY, choice: Choice = "best", both: bool = False) -> Sampling:
    """Scheduled sampling in two passes: predicts all tokens at once, from the truth (Mihaylova & Martins 2019).

    decay: how the share of true tokens falls
    choice: predict the most probable token, or a sample
    both: learn from the true tokens as well, with equal weight
    """
    truth: Decay = build("weft.losses:DECAYS", decay)

    def inputs(model: Model, batch: PairBatch, update: int) -> list[Tensor]:
        mixed = all_at_once(model, batch, truth(update), choice, passes=1)
        return [batch.target, mixed] if both else [mixed]

    return Sampling(inputs)


def parallel_sampling(*, decay: Decaying = DECAY, choice: Choice = "best", passes: PositiveInt = 2) -> Sampling:
    """Scheduled sampling in parallel passes: each pass predicts from the input of the pass before (Duckworth et al. 2019).

    With as many passes as tokens, and the most probable tokens as predictions, it equals scheduled sampling token by token.

    decay: how the share of true tokens falls
    choice: predict the most probable token, or a sample
    passes: number of prediction passes
    """
    truth: Decay = build("weft.losses:DECAYS", decay)
    return Sampling(lambda model, batch, update: [all_at_once(model, batch, truth(update), choice, passes)])


@without_gradient()
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
    state = model.decoder.init_state(model.encode(batch.source))
    for t in range(fed.size(1) - 1):
        features = model.decoder.hidden_states(fed[:, t : t + 1], state)
        said, state = predictions(model.decoder, features.hidden, choice)[:, 0], features.state
        fed[:, t + 1] = fed[:, t + 1].where(keep[:, t + 1], said)
    return fed


@without_gradient()
def all_at_once(model: Model, batch: PairBatch, truth: float, choice: Choice, passes: int) -> Tensor:
    """[B, T] inputs: a share `truth` of true tokens, the others predicted from all inputs of the pass before."""
    if truth >= 1:
        return batch.target
    keep, fed = _kept(batch, truth), batch.target
    encoded = model.encode(batch.source)
    for _ in range(passes):
        features = model.decoder.hidden_states(fed, model.decoder.init_state(encoded), batch.target_layout)
        fed = batch.target.where(keep, predictions(model.decoder, features.hidden, choice).roll(1, 1))
    return fed


def _kept(batch: PairBatch, truth: float) -> Tensor:
    """[B, T] bool: where the truth is fed: at the first token of each sentence, in padding, and at random elsewhere."""
    layout = batch.target_layout
    drawn = torch.rand(layout.positions.shape, device=layout.positions.device) < truth
    return drawn | (layout.positions == 0) | ~layout.mask
