"""REINFORCE for attention that samples its positions (Williams 1992; Xu et al. 2015).

Shapes: B rows, the samples of a sentence next to each other · T target positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.attention.base import Attention
from weft.batch import PairBatch
from weft.errors import ConfigError
from weft.models.base import Model


@dataclass(frozen=True)
class Reinforce:
    """−Σ_t (weight · (R_t − b_t) · log p(a_t) + entropy_weight · H_t), where a_t is sampled with entropy H_t at position t.

    The reward of a sample is the log-likelihood that follows it: R_t = Σ_{k ≥ t} discount^(k−t) · log p(y_k | …) of the true
    tokens y. With discount 1 the gradient is that of the expected log-likelihood, without bias; below 1 a sample mostly
    accounts for its own token, which is far less noisy.

    The baseline is the mean over the other samples of the same sentence at the same position or, with one sample per
    sentence, the mean over all tokens of the other sentences in the micro-batch. Neither depends on a_t, so neither adds
    bias. It replaces the moving average of Xu et al., needs no state in a checkpoint, and does not depend on how processes
    share the micro-batches.
    """

    weight: float
    entropy_weight: float
    discount: float
    draws: int

    def repeat(self, model: Model, batch: PairBatch) -> PairBatch:
        """The batch with each sentence repeated once per sample."""
        if self.draws > 1 and not any("log_prob" in part.extras for part in model.modules() if isinstance(part, Attention)):
            raise ConfigError(f"task.draws: {self.draws} is for attention that samples, such as hard; remove it for this model")
        return batch.repeat(self.draws)

    def loss(self, gained: Tensor, log_prob: Tensor, entropy: Tensor, ok: Tensor) -> Tensor:
        """The sum over all real tokens. gained [B, T]: log p of the true tokens, 0 on padding; log_prob, entropy [B, T]."""
        advantage = _to_go((gained - self._baseline(gained, ok)).where(ok, 0.0), self.discount)
        return -(self.weight * advantage * log_prob + self.entropy_weight * entropy).where(ok, 0.0).sum()

    def _baseline(self, gained: Tensor, ok: Tensor) -> Tensor:
        """[B, T] or [B, 1]: from rows whose samples are independent of the row's own."""
        if self.draws > 1:
            alike = gained.unflatten(0, (-1, self.draws))
            return ((alike.sum(1, keepdim=True) - alike) / (self.draws - 1)).flatten(0, 1)
        mine, tokens = gained.sum(1, keepdim=True), ok.sum(1, keepdim=True)
        return (mine.sum() - mine) / (tokens.sum() - tokens).clamp_min(1)


def _to_go(values: Tensor, discount: float) -> Tensor:
    """[B, T]: Σ_{k ≥ t} discount^(k−t) · values_k. A matrix product would be rounded to bf16 under autocast."""
    place = torch.arange(values.size(1), device=values.device)
    ahead = place - place[:, None]
    shares = torch.where(ahead >= 0, discount ** ahead.clamp_min(0).to(values.dtype), 0.0)
    return (values[:, None] * shares).sum(-1)
