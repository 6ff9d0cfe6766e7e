"""R-Drop (Liang et al. 2021): two passes over a batch, each with its own dropout, should predict the same.

Shapes: B rows · T target positions · V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.layers.linear import accumulation_dtype
from weft.losses.cross_entropy import IMPOSSIBLE
from weft.losses.log_likelihood import in_slices
from weft.models.base import Decoder


def divergence(decoder: Decoder, first: Tensor, second: Tensor, ok: Tensor) -> Tensor:
    """Σ over real tokens of ½ KL(p‖q) + ½ KL(q‖p), where p and q are predicted from two passes' hidden states [B, T, D]."""

    def divergence(first: Tensor, second: Tensor, ok: Tensor) -> Tensor:
        # ½ Σ p (log p − log q) + ½ Σ q (log q − log p) = ½ Σ (p − q) (log p − log q)
        logits = [decoder.logits(each) for each in (first, second)]
        logp, logq = (each.log_softmax(-1, dtype=accumulation_dtype(each.dtype)).clamp_min(-IMPOSSIBLE) for each in logits)
        each = ((logp.exp() - logq.exp()) * (logp - logq)).sum(-1) / 2
        return each.where(ok, 0.0).sum()

    return torch.stack(in_slices(divergence, first, second, ok)).sum()
