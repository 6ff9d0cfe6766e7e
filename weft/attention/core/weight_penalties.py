"""Penalties on attention weights: for leaving the diagonal, for attending twice, and for not attending at all.

Each returns a term for the task to mask, weight and sum: [B, T], one value per query, or [B, S], one per source token.

Shapes: B rows · H heads · T queries · S keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.batch import Layout
from weft.layers.autocast import at_least_float


def guided_penalty(
    weights: Tensor, layout: Layout | None = None, source_layout: Layout | None = None, width: float = 0.2
) -> Tensor:
    """Mean over the source of α_ts (1 − exp(−(s/S − t/T)² / 2g²)), over all heads (Tachibana et al. 2017, section 3.3).

    weights [B, H, T, S]; `width` is g. S and T are the lengths of each pair's own sentences. Padding gets 0.
    """
    rows, _, extent, total = weights.shape
    target, targets = _places(layout, rows, extent, weights.device)
    source, sources = _places(source_layout, rows, total, weights.device)
    apart = source[:, None] / sources[:, None] - (target / targets)[..., None]
    cost = (1 - torch.exp(-(apart**2) / (2 * width**2))) / sources[:, None]
    penalty = (at_least_float(weights).mean(1) * cost).sum(-1)
    return penalty if layout is None else penalty.where(layout.ok, 0.0)


def coverage_penalty(weights: Tensor) -> Tensor:
    """Σ_s min(α_ts, c_ts) with c_t = Σ_{t' < t} α_t', mean over heads (See et al. 2017, equation 12).

    weights [B, H, T, S] of a whole target, from its first token on.
    """
    alpha = at_least_float(weights)
    before = alpha.cumsum(2) - alpha
    return torch.minimum(alpha, before).sum(-1).mean(1)


def doubly_stochastic_penalty(weights: Tensor, layout: Layout | None = None, source_layout: Layout | None = None) -> Tensor:
    """[B, S]: (1 − Σ_t α_ts)² of each source token, mean over heads: every token should get attention (Xu et al. 2015, eq. 14).

    weights [B, H, T, S] of a whole target. Source padding gets 0, and target padding does not count in the sum.
    """
    alpha = at_least_float(weights)
    if layout is not None:
        alpha = alpha.where(layout.ok[:, None, :, None], 0.0)
    penalty = (1 - alpha.sum(2)).pow(2).mean(1)
    return penalty if source_layout is None else penalty.where(source_layout.ok, 0.0)


def _places(layout: Layout | None, rows: int, extent: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The position of each token and the length of its sentence, [B, extent] each; lengths are at least 1."""
    if layout is None:
        place = torch.arange(extent, device=device).expand(rows, extent)
        return place, torch.full_like(place, max(extent, 1))
    if layout.offsets is None:
        return layout.positions, layout.lengths.clamp_min(1)[:, None].expand(rows, extent)
    lengths = layout.offsets.diff().clamp_min(1).long()
    # Sentences are numbered from 1; padding, numbered 0, comes last.
    return layout.positions, lengths[(layout.segments.long() - 1) % lengths.numel()]
