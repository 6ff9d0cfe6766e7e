"""Random feature attention: the softmax over unit vectors estimated by sines and cosines."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Site
from weft.attention.drawn import Drawn
from weft.attention.features import FeatureAttention, Features

SHARPEST = math.sqrt(2)
"""The least width of the kernel is 1 / this. A narrower one is smaller than its estimation error for most pairs."""


class RandomFeatureAttention(FeatureAttention):
    """φ(x) = [sin(ωᵀx), cos(ωᵀx)]/√m on unit vectors estimates the Gaussian kernel exp(−‖σ(q − k)‖²/2) with ω ~ N(0, σ²).

    On unit vectors that is the softmax's exp(σ² q·k) but for a factor. σ is learned for each head and channel, starts at 1 and
    stays below √2. Estimates of a norm may be too small, even negative; none counts as less than the true kernel allows.

    features: m, how many ω; the error falls with its square root
    redraw: ω are drawn anew about every so many steps of training; 0: never
    bias: whether the projections have one
    """

    paper = "Peng et al. 2021"

    def __init__(self, site: Site, *, features: PositiveInt = 64, redraw: NonNegativeInt = 1000, bias: bool = True) -> None:
        super().__init__(site, features=2 * features, bias=bias)
        self.directions = Drawn(functools.partial(_directions, features, site.head_dim), redraw)
        self.sharpness = nn.Parameter(torch.full((site.heads, 1, site.head_dim), _logit(1 / SHARPEST)))

    def sigma(self) -> Tensor:
        """σ [H, 1, D]."""
        return SHARPEST * self.sharpness.float().sigmoid()

    def phi(self, x: Tensor) -> Features:
        """Without the factor 1/√m, which cancels."""
        angle = (F.normalize(x.float(), dim=-1) * self.sigma()) @ self.directions().T
        return Features(torch.cat([angle.sin().to(x.dtype), angle.cos().to(x.dtype)], -1))

    def least(self) -> Tensor:
        """Unit vectors are at most 2 apart."""
        return self.features / 2 * (-2 * self.sigma().amax(-1).square()).exp()

    def refresh(self, generator: torch.Generator) -> None:
        self.directions.redraw(generator)


def _directions(count: int, width: int, generator: torch.Generator | None) -> Tensor:
    return torch.randn(count, width, generator=generator)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
