"""Attention by the product of query and key."""

from __future__ import annotations

from weft.attention.base import Site
from weft.attention.scores import DotScore
from weft.attention.single import ScoredAttention


class DotAttention(ScoredAttention):
    """e_j = sᵀh_j, α = softmax(e), and the context is Σ α_j h_j.

    A product needs equal widths: where the memory is wider or narrower than the query, h_j in e_j is P h_j, with a learned P.

    scale: whether e_j is divided by the root of the width (Vaswani et al. 2017)
    """

    paper = "Luong et al. 2015"

    def __init__(self, site: Site, *, scale: bool = False) -> None:
        super().__init__(site, DotScore(site.dim, site.memory_dim, scale=scale))
