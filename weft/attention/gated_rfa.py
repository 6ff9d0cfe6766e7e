"""Random feature attention that forgets."""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Site
from weft.attention.rfa import RandomFeatureAttention

ORDERED = "its gate forgets what is long past, and only a sequence read in order has a past; use rfa here"


class GatedRandomFeatureAttention(RandomFeatureAttention):
    """Random feature attention whose sums decay: S_t = g_t S_{t−1} + (1 − g_t) φ(k_t)v_tᵀ with a gate g = σ(w·x + b) a head.

    features: m, how many ω; the error falls with its square root
    redraw: ω are drawn anew about every so many steps of training; 0: never
    bias: whether the projections have one
    """

    paper = "Peng et al. 2021"
    uses = frozenset({"causal"})
    instead: ClassVar[dict[str, str]] = {"encoder": ORDERED, "cross": ORDERED}
    ignores_key_order = False
    weighted = True

    def __init__(self, site: Site, *, features: PositiveInt = 64, redraw: NonNegativeInt = 1000, bias: bool = True) -> None:
        super().__init__(site, features=features, redraw=redraw, bias=bias)
        self.gate = nn.Linear(site.dim, site.heads)
        nn.init.constant_(self.gate.bias, 3.0)  # at first a token is remembered for about twenty

    def gates(self, x: Tensor) -> Tensor:
        return self.gate(x).transpose(1, 2)
