"""What a decoder that writes all tokens at once reads in training: blanks, some true tokens, or a glance at them.

Shapes: B rows · T target positions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mask_some(tokens: Tensor, real: Tensor, blank: int) -> Tensor:
    """`tokens` [B, T] with n of the N `real` ones of each row replaced by blanks, n drawn evenly from 1 … N.

    Every n is trained, all N included, because decoding begins with blanks only (Ghazvininejad et al. 2019).
    """
    lengths = real.sum(1)
    count = (torch.rand(lengths.shape, device=tokens.device) * lengths).long().clamp_max(lengths - 1) + 1
    return tokens.masked_fill(_first(count, real), blank)


def glance(truth: Tensor, predicted: Tensor, real: Tensor, share: float | Tensor, blank: int) -> Tensor:
    """Blanks [B, T], but some true tokens at random: `share` of as many as were predicted wrongly (GLAT, Qian et al. 2021)."""
    wrong = ((truth != predicted) & real).sum(1)
    return truth.masked_fill(~_first((share * wrong).long(), real), blank)


def _first(count: Tensor, real: Tensor) -> Tensor:
    """[B, T] bool: `count` [B] of the real positions of each row, at random."""
    order = torch.rand(real.shape, device=real.device).masked_fill(~real, 2.0).argsort(1)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(real.size(1), device=real.device).expand_as(order))
    return (rank < count[:, None]) & real
