"""Attention by a small network over query and key side by side."""

from __future__ import annotations

from pydantic import NonNegativeInt

from weft.attention.base import Site
from weft.attention.scores import AdditiveScore
from weft.attention.single import ScoredAttention


class ConcatAttention(ScoredAttention):
    """e_j = vᵀ tanh(W [s; h_j]), α = softmax(e), and the context is Σ α_j h_j.

    It is additive attention without a bias: W [s; h_j] is one matrix times s plus another times h_j.

    hidden: width of the scoring network; 0: the model's
    """

    paper = "Luong et al. 2015"

    def __init__(self, site: Site, *, hidden: NonNegativeInt = 0) -> None:
        super().__init__(site, AdditiveScore(site.dim, site.memory_dim, hidden or site.dim, bias=False))
