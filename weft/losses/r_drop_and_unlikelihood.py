"""Two losses beside cross-entropy: R-Drop and unlikelihood.

R-Drop (Liang et al. 2021): two passes over a batch, each with its own dropout, should predict the same. Unlikelihood
(Welleck et al. 2020): tokens that a source has and its target does not should not be predicted.

Shapes: B rows · T target positions · S source positions · G texts · V vocabulary.
"""

import torch
from torch import Tensor

from weft.data.batch import UNK, Layout, PairBatch
from weft.layers.linear_norm_dropout import accumulation_dtype
from weft.losses.cross_entropy import IMPOSSIBLE
from weft.losses.log_likelihood import in_slices
from weft.models.base import Decoder


def divergence(decoder: Decoder, first: Tensor, second: Tensor, mask: Tensor) -> Tensor:
    """Σ over real tokens of ½ KL(p‖q) + ½ KL(q‖p), where p and q are predicted from two passes' hidden states [B, T, D]."""

    def divergence(first: Tensor, second: Tensor, mask: Tensor) -> Tensor:
        # ½ Σ p (log p − log q) + ½ Σ q (log q − log p) = ½ Σ (p − q) (log p − log q)
        logits = [decoder.logits(each) for each in (first, second)]
        logp, logq = (each.log_softmax(-1, dtype=accumulation_dtype(each.dtype)).clamp_min(-IMPOSSIBLE) for each in logits)
        each = ((logp.exp() - logq.exp()) * (logp - logq)).sum(-1) / 2
        return each.where(mask, 0.0).sum()

    return torch.stack(in_slices(divergence, first, second, mask)).sum()


SUREST = 1 - 1e-6
"""Larger probabilities count as this one, so that the penalty stays finite."""


def unlikelihood(decoder: Decoder, hidden: Tensor, batch: PairBatch, vocabulary: int) -> Tensor:
    """−Σ log(1 − p(c)) over the real positions of targets and the tokens c of their sources that the target does not have.

    Source and target need one vocabulary. Special tokens are left out.
    """
    only = source_only(batch, vocabulary)

    def penalty(hidden: Tensor, texts: Tensor, mask: Tensor) -> Tensor:
        logits = decoder.logits(hidden)
        chances = logits.softmax(-1, dtype=accumulation_dtype(logits.dtype)).clamp_max(SUREST)
        return -torch.log1p(-chances).where(only[texts], 0.0).sum(-1).where(mask, 0.0).sum()

    return torch.stack(in_slices(penalty, hidden, text_numbers(batch.target_layout), batch.target_layout.mask)).sum()


def source_only(batch: PairBatch, vocabulary: int) -> Tensor:
    """[G, V] bool: which tokens the source of each text has and its target does not."""
    layout = batch.target_layout
    count = layout.segments.size(0) if layout.offsets is None else layout.offsets.numel()
    only = torch.zeros(count, vocabulary, dtype=torch.bool, device=batch.labels.device)
    sources = batch.source.layout
    rows = torch.arange(count, device=only.device)[:, None] if sources is None else text_numbers(sources)
    only[rows, batch.source.values] = True
    only[text_numbers(layout), batch.labels] = False
    only[:, : UNK + 1] = False
    return only


def text_numbers(layout: Layout) -> Tensor:
    """[B, T]: the number of the text that a position belongs to, counted from 0; any number where there is no token."""
    if layout.offsets is not None:
        return (layout.segments.long() - 1).clamp_min(0)
    rows = torch.arange(layout.segments.size(0), device=layout.segments.device)
    return rows[:, None].expand_as(layout.segments)
