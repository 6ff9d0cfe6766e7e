"""Attention by a product with a matrix between query and key."""

from __future__ import annotations

from weft.attention.base import Site
from weft.attention.scores import GeneralScore
from weft.attention.single import ScoredAttention


class GeneralAttention(ScoredAttention):
    """e_j = sᵀW h_j, α = softmax(e), and the context is Σ α_j h_j."""

    paper = "Luong et al. 2015"

    def __init__(self, site: Site) -> None:
        super().__init__(site, GeneralScore(site.dim, site.memory_dim))
