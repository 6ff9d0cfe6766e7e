"""Attention of the linear Transformer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.attention.base import Site
from weft.attention.core.feature_maps import FeatureAttention, ScaledFeatures
from weft.attention.core.prefix_sums import beside
from weft.layers.kernels.cpp_plan import Keys, PlanBuilder, Register


class LinearAttention(FeatureAttention):
    """φ(Q)(φ(K)ᵀV) / φ(Q)Σφ(K) with φ(x) = elu(x) + 1; in causal use a recurrence with a state of constant size.

    bias: whether the projections have a bias
    """

    paper = "Katharopoulos et al. 2020"

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        super().__init__(site, features=site.head_dim, bias=bias)

    def phi(self, x: Tensor) -> ScaledFeatures:
        return ScaledFeatures(_EluPlusOne.apply(x))

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        layers, heads = self.heads, self.site.heads
        if self.site.use == "cross":
            query, wide = draft.linear(layers.query, x), beside(layers.width)
            return draft.linear(layers.out, draft.attend_memory_sums(query, heads, lambda sums: Keys(sums.values), wide))
        joint = draft.linear(layers.query_key_value, x)
        return draft.linear(layers.out, draft.attend_sums(joint, heads, causal=self.site.use == "causal"))


class _EluPlusOne(torch.autograd.Function):
    """elu(x) + 1 = exp(min(x, 0)) + max(x, 0), rounded once in half precision. Saves φ alone: the derivative is min(φ, 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        phi = torch.clamp_max(x, 0.0, out=x.new_empty(x.shape)).exp_()
        phi += x.clamp_min(0.0)
        ctx.save_for_backward(phi)
        ctx.laid_out = torch.empty_like(x, device="meta")
        return phi

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (phi,) = ctx.saved_tensors
        slope = torch.empty_like(ctx.laid_out, device=phi.device)
        return torch.mul(gradients[0], phi.clamp_max(1.0), out=slope)
