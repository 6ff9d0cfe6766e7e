"""Random feature attention: sines and cosines estimate the softmax over unit vectors."""

import functools
import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Site
from weft.attention.core.feature_maps import FeatureAttention, RedrawnBuffer, ScaledFeatures
from weft.layers.step_recorder import record

SHARPEST = math.sqrt(2)
"""The reciprocal of the smallest kernel width. A narrower kernel is smaller than its estimation error for most pairs."""

ORDERED = "its gate forgets the distant past, and only a sequence read in order has a past; use rfa here"


class RandomFeatureAttention(FeatureAttention):
    """φ(x) = [sin(ωᵀx), cos(ωᵀx)]/√m on unit vectors estimates the Gaussian kernel exp(−‖σ(q − k)‖²/2) with ω ~ N(0, σ²).

    On unit vectors this equals the softmax's exp(σ² q·k) up to a factor. σ is learned per head and channel, starts at 1 and
    stays below √2. An estimated norm may be too small, even negative; it is clamped to the smallest value that the true kernel
    allows.

    features: m, the number of ω; the error falls with its square root
    redraw: average number of training steps between redraws of ω; 0: never
    bias: whether the projections have a bias
    """

    paper = "Peng et al. 2021"
    bounded = True

    def __init__(self, site: Site, *, features: PositiveInt = 64, redraw: NonNegativeInt = 1000, bias: bool = True) -> None:
        super().__init__(site, features=2 * features, bias=bias)
        self.directions = RedrawnBuffer(functools.partial(torch.randn, features, site.head_dim, dtype=torch.float32), redraw)
        self.sharpness = nn.Parameter(torch.full((site.heads, 1, site.head_dim), -math.log(SHARPEST - 1)))

    def sigma(self) -> Tensor:
        """σ [H, 1, D]."""
        return SHARPEST * self.sharpness.float().sigmoid()

    def phi(self, x: Tensor) -> ScaledFeatures:
        """The features without the factor 1/√m, which cancels."""
        return ScaledFeatures(_Waves.apply(x, self.sigma() * self.directions()))

    def record_phi(self, side: str, x: Tensor, found: ScaledFeatures) -> None:
        axes, cells = f"row head {side} feature", f"row head {side} channel"
        unit, waves = F.normalize(x, dim=-1), (self.sigma() * self.directions()).to(x.dtype)
        record(f"{side} directions", unit, cells, "x / norm(x, channel)", self, x=(x, cells))
        angles = unit @ waves.transpose(-1, -2)
        operands = {"W": (waves, "head feature channel"), "x": (unit, cells)}
        record(f"{side} angles", angles, axes, "sum(W * x, channel)", self, **operands)
        sines, cosines = found.phi.chunk(2, -1)
        record(f"{side} sines", sines, axes, "sin(x)", self, x=(angles, axes))
        record(f"{side} cosines", cosines, axes, "cos(x)", self, x=(angles, axes))
        parts = {"sines": (sines, axes), "cosines": (cosines, axes)}
        record(f"{side} features", found.phi, axes, "join(sines, cosines, feature)", self, **parts)

    def least(self) -> Tensor:
        """The kernel's minimum: unit vectors are at most 2 apart."""
        return self.features / 2 * (-2 * self.sigma().amax(-1).square()).exp()


class GatedRandomFeatureAttention(RandomFeatureAttention):
    """Random feature attention with decay: S_t = g_t S_{t−1} + (1 − g_t) φ(k_t)v_tᵀ and one gate g = σ(w·x + b) per head."""

    uses = frozenset({"causal"})
    instead: ClassVar[dict[str, str]] = {"encoder": ORDERED, "cross": ORDERED}
    ignores_key_order = False
    weighted = True

    def __init__(self, site: Site, *, features: PositiveInt = 64, redraw: NonNegativeInt = 1000, bias: bool = True) -> None:
        super().__init__(site, features=features, redraw=redraw, bias=bias)
        self.gate = nn.Linear(site.dim, site.heads)
        nn.init.constant_(self.gate.bias, 3.0)  # initially a token is remembered for about twenty tokens

    def gates(self, x: Tensor) -> Tensor:
        return self.gate(x).transpose(1, 2)


class _Waves(torch.autograd.Function):
    """[sin(ωᵀx̂), cos(ωᵀx̂)], [..., H, T, 2m], of the unit vectors x̂ along x [..., H, T, D], for ω [H, m, D].

    Angles are computed in float32: in half precision their error would exceed that of the features. Only x, its length and the
    features are saved for the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, directions: Tensor) -> Tensor:
        exact = x.to(torch.promote_types(x.dtype, torch.float32), memory_format=torch.contiguous_format)
        length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True).clamp_min_(1e-12)
        angle = (exact @ directions.to(exact.dtype).transpose(-1, -2)).div_(length)
        count = directions.size(1)
        waves = x.new_empty(*x.shape[:-1], 2 * count)
        torch.sin(angle, out=waves[..., :count])
        torch.cos(angle, out=waves[..., count:])
        ctx.save_for_backward(x, length, directions, waves)
        return waves

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, length, directions, waves = ctx.saved_tensors
        (sin, cos), (of_sin, of_cos) = waves.chunk(2, -1), gradients[0].chunk(2, -1)
        angle = torch.addcmul(of_sin * cos, of_cos, sin, value=-1).div_(length)
        slope = angle @ directions.to(angle.dtype)
        # Moving x along its own direction does not change x̂.
        along = (slope * x).sum(-1, keepdim=True, dtype=length.dtype) / length.square()
        slope = torch.addcmul(slope, x, along.to(x.dtype), value=-1, out=torch.empty_like(x))
        products = (angle.transpose(-1, -2) @ x).flatten(0, -4)
        return slope, products.sum(0, dtype=directions.dtype)
