"""Performer's attention: the softmax estimated by positive random features."""

import functools
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from weft.attention.base import Site
from weft.attention.core.feature_maps import FeatureAttention, RedrawnBuffer, ScaledFeatures
from weft.layers.step_recorder import record


class PerformerAttention(FeatureAttention):
    """FAVOR+: φ(x) = exp(ωᵀx − ‖x‖²/2)/√m estimates exp(q·k/√d), with orthogonal ω that are redrawn in training.

    features: m, the number of random features; the error falls as 1/√m if queries and keys are short, more slowly otherwise
    redraw: average number of training steps between redraws of the features; 0: never
    orthogonal: whether the ω of a block are orthogonal, which lowers the error, or independent
    bias: whether the projections have a bias
    """

    paper = "Choromanski et al. 2021"
    weighted = True

    def __init__(
        self,
        site: Site,
        *,
        features: PositiveInt = 128,
        redraw: NonNegativeInt = 1000,
        orthogonal: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__(site, features=features, bias=bias)
        self.directions = RedrawnBuffer(functools.partial(_directions, features, site.head_dim, orthogonal), redraw)

    def phi(self, x: Tensor) -> ScaledFeatures:
        return ScaledFeatures(*_Positive.apply(x, self.directions()))

    def record_phi(self, side: str, x: Tensor, found: ScaledFeatures) -> None:
        axes, cells = f"row head {side} feature", f"row head {side}"
        directions = x.size(-1) ** -0.25 * self.directions().to(x.dtype)
        power = x @ directions.T
        top = power.amax(-1)
        operands = {"W": (directions, "feature channel"), "x": (x, f"{cells} channel")}
        record(f"{side} projections", power, axes, "sum(W * x, channel)", self, **operands)
        record(f"{side} features", found.phi, axes, "exp(x - max(x, feature))", self, x=(power, axes))
        assert found.log_scale is not None
        lengths = {"x": (x, f"{cells} channel"), "half": x.size(-1) ** -0.5 / 2}
        formula = "top - half * sum(x * x, channel)"
        record(f"{side} log weights", found.log_scale, cells, formula, self, top=(top, cells), **lengths)


class _Positive(torch.autograd.Function):
    """exp(ωᵀx − ‖x‖²/2) as φ · exp(c): the largest feature of each token is 1, so φ = exp(ωᵀx − max ωᵀx) without ‖x‖².

    x [..., D] is first scaled by D^−¼. The exponent is computed in float32, since half precision would be off by percents. Only
    x and the features are saved for the backward pass, a third of what autograd would save. c cancels when the output is
    normalised, so it has no gradient: the gradient is that of exp(ωᵀx − ‖x‖²/2 − c) with c held fixed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.size(-1) ** -0.25
        exact = x.to(torch.promote_types(x.dtype, torch.float32), memory_format=torch.contiguous_format)
        directions = scale * directions.to(exact.dtype)
        power = exact @ directions.T
        top = power.amax(-1, keepdim=True)
        phi = torch.exp(power.sub_(top), out=torch.empty_like(power, dtype=x.dtype))
        length = torch.linalg.vector_norm(exact, dim=-1)
        log_scale = torch.addcmul(top[..., 0], length, length, value=-(scale**2) / 2)
        ctx.save_for_backward(x, directions, phi)
        ctx.mark_non_differentiable(log_scale)
        ctx.set_materialize_grads(False)
        return phi, log_scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, directions, phi = ctx.saved_tensors
        slope = gradients[0] * phi
        along = slope @ directions.to(slope.dtype)
        length = slope.sum(-1, keepdim=True)
        return torch.addcmul(along, x, length, value=-(x.size(-1) ** -0.5), out=torch.empty_like(x)), None


def _directions(count: int, width: int, orthogonal: bool, generator: torch.Generator | None) -> Tensor:
    """ω [count, width], each distributed as a normal vector; those in a block of `width` are orthogonal to each other."""
    drawn = torch.randn(count, width, generator=generator, dtype=torch.float32)
    if not orthogonal:
        return drawn
    blocks = torch.randn(-(-count // width), width, width, generator=generator, dtype=torch.float32)
    q, r = torch.linalg.qr(blocks)
    # Without the signs QR prefers some directions, and the error no longer falls with more features.
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    return q.flatten(0, 1)[:count] * drawn.norm(dim=1, keepdim=True)
