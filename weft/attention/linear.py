"""The linear Transformer's attention."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from weft.attention.base import Site
from weft.attention.features import FeatureAttention, Features


class LinearAttention(FeatureAttention):
    """φ(Q)(φ(K)ᵀV) / φ(Q)Σφ(K) with φ(x) = elu(x) + 1; causal use is a recurrence with a state of constant size.

    bias: whether the projections have one
    """

    paper = "Katharopoulos et al. 2020"

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        super().__init__(site, features=site.head_dim, bias=bias)

    def phi(self, x: Tensor) -> Features:
        return Features(F.elu(x.float()) + 1)
