"""Penalties on cross-attention weights: for leaving the diagonal, for attending twice, and for not attending at all.

Shapes: B rows · H heads · T target positions · S source positions.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.attention.base import Attention
from weft.attention.core.weight_recorder import cross_attentions, record_weights
from weft.data.batch import Layout, PairBatch
from weft.errors import ConfigError
from weft.layers.linear_norm_dropout import to_float32

Recorded = Sequence[list[Tensor]]
"""For each recorded attention its weights [B, H, t, S], one slice of the target after the other."""


def guided_penalty(
    weights: Tensor, layout: Layout | None = None, source_layout: Layout | None = None, width: float = 0.2
) -> Tensor:
    """[B, T]: mean over the source of α_ts (1 − exp(−(s/S − t/T)² / 2g²)), over all heads (Tachibana et al. 2017, section 3.3).

    weights [B, H, T, S]; `width` is g. S and T are the lengths of each pair's own sentences. Padding gets 0.
    """
    rows, _, extent, total = weights.shape
    target, targets = places(layout, rows, extent, weights.device)
    source, sources = places(source_layout, rows, total, weights.device)
    apart = source[:, None] / sources[:, None] - (target / targets)[..., None]
    cost = (1 - torch.exp(-(apart**2) / (2 * width**2))) / sources[:, None]
    penalty = (to_float32(weights).mean(1) * cost).sum(-1)
    return penalty if layout is None else penalty.where(layout.mask, 0.0)


def coverage_penalty(weights: Tensor) -> Tensor:
    """[B, T]: Σ_s min(α_ts, c_ts) with c_t = Σ_{t' < t} α_t', mean over heads (See et al. 2017, equation 12).

    weights [B, H, T, S] of a whole target, from its first token on.
    """
    alpha = to_float32(weights)
    before = alpha.cumsum(2) - alpha
    return torch.minimum(alpha, before).sum(-1).mean(1)


def doubly_stochastic_penalty(weights: Tensor, layout: Layout | None = None, source_layout: Layout | None = None) -> Tensor:
    """[B, S]: (1 − Σ_t α_ts)² of each source token, mean over heads: every token should get attention (Xu et al. 2015, eq. 14).

    weights [B, H, T, S] of a whole target. Source padding gets 0, and target padding does not count in the sum.
    """
    alpha = to_float32(weights)
    if layout is not None:
        alpha = alpha.where(layout.mask[:, None, :, None], 0.0)
    penalty = (1 - alpha.sum(2)).pow(2).mean(1)
    return penalty if source_layout is None else penalty.where(source_layout.mask, 0.0)


def places(layout: Layout | None, rows: int, extent: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The position of each token and the length of its sentence, [B, extent] each; lengths are at least 1."""
    if layout is None:
        place = torch.arange(extent, device=device).expand(rows, extent)
        return place, torch.full_like(place, max(extent, 1))
    if layout.offsets is None:
        return layout.positions, layout.lengths.clamp_min(1)[:, None].expand(rows, extent)
    lengths = layout.offsets.diff().clamp_min(1).long()
    # Sentences are numbered from 1; padding, numbered 0, comes last.
    return layout.positions, lengths[(layout.segments.long() - 1) % lengths.numel()]


@dataclass(frozen=True)
class Penalties:
    """The weight of each penalty, by name, and the attentions it applies to.

    layers: indices among the decoder's cross-attentions that have weights; −1 is the last.
    """

    weights: Mapping[str, float]
    guided_width: float
    layers: Sequence[int]

    @contextmanager
    def recording(self, decoder: nn.Module) -> Iterator[Recorded]:
        """Inside this context the chosen attentions of a decoder record their weights."""
        attentions = self._attentions(decoder) if any(self.weights.values()) else []
        with record_weights(attentions) as recorded:
            yield recorded

    def sums(self, recorded: Recorded, batch: PairBatch) -> dict[str, Tensor]:
        """Each penalty with a weight, unweighted: the sum over all tokens, the mean over the chosen attentions."""
        layers = [torch.cat(slices, 2) for slices in recorded]
        if any(not weights.requires_grad for weights in layers):
            raise ConfigError(f"{self._option}: the attention weights of this model have no gradient; set it to 0")
        return {
            name: torch.stack([self._sum(name, weights, batch) for weights in layers]).mean()
            for name, weight in self.weights.items()
            if weight
        }

    def _sum(self, name: str, weights: Tensor, batch: PairBatch) -> Tensor:
        layout, source = batch.target_layout, batch.source.layout
        if name == "guided":
            return guided_penalty(weights, layout, source, self.guided_width).sum()
        if name == "coverage":
            return coverage_penalty(weights).where(layout.mask, 0.0).sum()
        return doubly_stochastic_penalty(weights, layout, source).sum()

    @property
    def _option(self) -> str:
        """The first option that sets a penalty."""
        return next(f"task.{name}_weight" for name, weight in self.weights.items() if weight)

    def _attentions(self, decoder: nn.Module) -> list[Attention]:
        """The attentions that `layers` names."""
        layers = [each for each in cross_attentions(decoder).values() if each.weights_sum is not None]
        if not layers:
            raise ConfigError(f"{self._option} needs a model whose cross-attention has weights; set it to 0")
        if wrong := [layer for layer in self.layers if not -len(layers) <= layer < len(layers)]:
            raise ConfigError(
                f"task.penalty_layers: there is no layer {wrong[0]}; "
                f"the model has {len(layers)} with weights, 0 to {len(layers) - 1}"
            )
        return [layers[layer] for layer in self.layers]
