"""Learning where to look from what came of it: REINFORCE for attention that draws (Williams 1992; Xu et al. 2015).

Shapes: B rows, the draws of a sentence side by side · T target positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.batch import PAD
from weft.models.base import Decoder

CHUNK = 4096
"""Tokens whose logits are held at once."""


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


@torch.no_grad()
def log_likelihoods(decoder: Decoder, hidden: Tensor, labels: Tensor) -> Tensor:
    """[B, T]: log p of each label, 0 where it is PAD. Never holds the logits of more than `CHUNK` tokens or one position."""
    found, extent = [], max(1, CHUNK // hidden.size(0))
    for states, gold in zip(hidden.split(extent, 1), labels.split(extent, 1), strict=True):
        logits = decoder.logits(states)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        found.append(logits.gather(-1, gold[..., None])[..., 0] - logits.logsumexp(-1))
    return torch.cat(found, 1).where(labels != PAD, 0.0)
