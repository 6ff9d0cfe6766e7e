"""Learning where to look from what came of it: REINFORCE for attention that draws (Williams 1992; Xu et al. 2015).

Shapes: B rows, the draws of a sentence side by side · T target positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.attention.base import Attention
from weft.batch import Batch
from weft.errors import ConfigError
from weft.models.base import Model


@dataclass(frozen=True)
class Reinforce:
    """−Σ_t (weight · (R_t − b_t) · log p(a_t) + entropy_weight · H_t), a_t being drawn with entropy H_t at position t.

    The reward of a draw is what follows it: R_t = Σ_{k ≥ t} discount^(k−t) · log p(y_k | …), of the true tokens y. A
    discount of 1 makes the gradient that of the expected log-likelihood, without bias; below 1 a draw answers mostly for
    the token it was made for, which is far less noisy.

    The baseline is the mean over the other draws of the same sentence at the same position or, where there is one draw a
    sentence, the mean over all tokens of the other sentences in the micro-batch. Neither depends on a_t, so neither adds
    bias. It stands for the moving average of Xu et al., needs no memory that a checkpoint would have to keep, and is the
    same however micro-batches are shared by processes.
    """

    weight: float
    entropy_weight: float
    discount: float
    draws: int

    def repeat(self, model: Model, batch: Batch) -> Batch:
        """The batch with each sentence as often as it is drawn for."""
        if self.draws > 1 and not any("log_prob" in part.terms for part in model.modules() if isinstance(part, Attention)):
            raise ConfigError(
                f"task.draws: {self.draws} is for attention that draws, such as hard; leave it out for this model"
            )
        return batch.repeat(self.draws)

    def loss(self, gained: Tensor, log_prob: Tensor, entropy: Tensor, ok: Tensor) -> Tensor:
        """The sum over all real tokens. All are [B, T]: gained, log p of the true tokens, 0 on padding; and the two terms."""
        advantage = _to_go((gained - self._baseline(gained, ok)).where(ok, 0.0), self.discount)
        return -(self.weight * advantage * log_prob + self.entropy_weight * entropy).where(ok, 0.0).sum()

    def _baseline(self, gained: Tensor, ok: Tensor) -> Tensor:
        """[B, T] or [B, 1]: from the rows whose draws are independent of a row's own."""
        if self.draws > 1:
            alike = gained.unflatten(0, (-1, self.draws))
            return ((alike.sum(1, keepdim=True) - alike) / (self.draws - 1)).flatten(0, 1)
        mine, tokens = gained.sum(1, keepdim=True), ok.sum(1, keepdim=True)
        return (mine.sum() - mine) / (tokens.sum() - tokens).clamp_min(1)


def _to_go(values: Tensor, discount: float) -> Tensor:
    """[B, T]: Σ_{k ≥ t} discount^(k−t) · values_k. A product of matrices would be rounded to bf16 under autocast."""
    place = torch.arange(values.size(1), device=values.device)
    ahead = place - place[:, None]
    shares = torch.where(ahead >= 0, discount ** ahead.clamp_min(0).to(values.dtype), 0.0)
    return (values[:, None] * shares).sum(-1)
