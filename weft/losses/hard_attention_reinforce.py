"""REINFORCE for attention that samples its positions (Williams 1992; Xu et al. 2015).

Shapes: B rows, the samples of a sentence next to each other · T target positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from weft.attention.base import Attention
from weft.data.batch import PairBatch
from weft.errors import ConfigError
from weft.losses.log_likelihood import log_likelihoods
from weft.models.base import Decoder, HiddenStates, Model

Baseline = Literal["samples", "moving"]

KEPT = 0.9
"""The share of the moving baseline that each micro-batch keeps."""


@dataclass(frozen=True)
class Reinforce:
    """−Σ_t (weight · (R_t − b_t) · log p(a_t) + entropy_weight · H_t), where a_t is sampled with entropy H_t at position t.

    R_t = Σ_{k ≥ t} discount^(k−t) · log p(y_k | …) of the true tokens y. With discount 1 the gradient is that of the expected
    log-likelihood. Below 1, as by default, it is biased, since effects on later tokens count too little, but far less noisy.

    The baseline b_t is the mean over the other samples of the sentence at that position or, with one sample per sentence, the
    mean over all tokens of the other sentences in the micro-batch. It needs no state. `moving` is that of Xu et al. 2015,
    section 4.1: b_k = 0.9 b_{k−1} + 0.1 log p_k, where log p_k is the mean per token of micro-batch k, one
    per process. No baseline depends on a_t, so none adds bias.
    """

    weight: float
    entropy_weight: float
    discount: float
    draws: int
    baseline: Baseline = "samples"

    def repeat(self, model: Model, batch: PairBatch) -> PairBatch:
        """The batch with each sentence repeated once per sample."""
        if self.draws > 1 and not any("log_prob" in part.extras for part in model.modules() if isinstance(part, Attention)):
            raise ConfigError(f"task.draws: {self.draws} is for attention that samples, such as hard; remove it for this model")
        return batch.repeat(self.draws)

    def __call__(
        self, decoder: Decoder, read: HiddenStates, labels: Tensor, mask: Tensor, moving: MovingBaseline | None
    ) -> Tensor:
        """The loss of what the decoder read, with the extras `log_prob` and `entropy`; it moves the moving baseline, if any.

        labels [B, T]: the true tokens · mask [B, T]: the positions that have one.
        """
        with torch.no_grad():
            gained = log_likelihoods(decoder, read.hidden, labels)
        before = None if moving is None else moving.on(gained.device)
        loss = self.loss(gained, read.extras["log_prob"], read.extras["entropy"], mask, before)
        if moving is not None:
            moving.move(gained, mask)
        return loss

    def loss(self, gained: Tensor, log_prob: Tensor, entropy: Tensor, mask: Tensor, moving: Tensor | None = None) -> Tensor:
        """The sum over all real tokens. gained [B, T]: log p of the true tokens, 0 on padding; log_prob, entropy [B, T].

        moving: the moving baseline, a scalar, if it is used.
        """
        baseline = self._baseline(gained, mask) if moving is None else moving
        advantage = to_go((gained - baseline).where(mask, 0.0), self.discount)
        return -(self.weight * advantage * log_prob + self.entropy_weight * entropy).where(mask, 0.0).sum()

    def _baseline(self, gained: Tensor, mask: Tensor) -> Tensor:
        """[B, T] or [B, 1]: from rows whose samples are independent of the row's own."""
        if self.draws > 1:
            return others_mean(gained.unflatten(0, (-1, self.draws)).movedim(1, -1)).movedim(-1, 1).flatten(0, 1)
        mine, tokens = gained.sum(1, keepdim=True), mask.sum(1, keepdim=True)
        return (mine.sum() - mine) / (tokens.sum() - tokens).clamp_min(1)


def others_mean(values: Tensor) -> Tensor:
    """[…, K]: for each of the K samples the mean of the others."""
    return (values.sum(-1, keepdim=True) - values) / (values.size(-1) - 1)


class MovingBaseline:
    """A moving mean of rewards, one in each process. `name` is what a checkpoint calls it."""

    def __init__(self, name: str) -> None:
        self.name = f"{name}/{dist.get_rank() if dist.is_available() and dist.is_initialized() else 0}"
        self._mean = torch.zeros(())

    def on(self, device: torch.device) -> Tensor:
        """The mean, a scalar on this device."""
        if self._mean.device != device:
            self._mean = self._mean.to(device)
        return self._mean

    def move(self, values: Tensor, mask: Tensor) -> None:
        """Moves the mean towards the values in the mask. It stays if there are none, or if their mean is not finite."""
        tokens, before = mask.sum(), self.on(values.device)
        mean = values.where(mask, 0.0).sum() / tokens.clamp_min(1)
        # In place, because a recorded step reads it from there.
        before.copy_(torch.where((tokens > 0) & mean.isfinite(), KEPT * before + (1 - KEPT) * mean, before))

    def extra_state(self) -> dict[str, Tensor]:
        return {self.name: self._mean.clone()}

    def load_extra_state(self, tensors: Mapping[str, Tensor]) -> None:
        if self.name in tensors:
            self._mean = tensors[self.name].clone()


def to_go(values: Tensor, discount: float) -> Tensor:
    """[B, T]: Σ_{k ≥ t} discount^(k−t) · values_k, by doubling: after each round, a sum covers twice as many values."""
    reach = 1
    while reach < values.size(1):
        values = values + discount**reach * F.pad(values[:, reach:], (0, reach))
        reach *= 2
    return values
