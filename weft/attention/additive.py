"""Attention by a small network that scores a query against a key."""

from __future__ import annotations

from pydantic import NonNegativeInt

from weft.attention.base import Site
from weft.attention.scores import AdditiveScore
from weft.attention.single import ScoredAttention


class AdditiveAttention(ScoredAttention):
    """e_j = vᵀ tanh(W s + b + U h_j), α = softmax(e), and the context is Σ α_j h_j.

    hidden: width of the scoring network; 0: the model's
    """

    paper = "Bahdanau et al. 2015"

    def __init__(self, site: Site, *, hidden: NonNegativeInt = 0) -> None:
        super().__init__(site, AdditiveScore(site.dim, site.memory_dim, hidden or site.dim))
