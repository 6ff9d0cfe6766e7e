"""Additive attention whose last layer has its length apart from its direction."""

from __future__ import annotations

from pydantic import NonNegativeInt

from weft.attention.base import Site
from weft.attention.scores import AdditiveScore
from weft.attention.single import ScoredAttention


class AdditiveNormedAttention(ScoredAttention):
    """e_j = g vᵀ/‖v‖ tanh(W s + b + U h_j), α = softmax(e), and the context is Σ α_j h_j.

    The length g is learned by itself. It begins at 1/√hidden, so that scores begin small whatever the width.

    hidden: width of the scoring network; 0: the model's
    """

    paper = "Salimans & Kingma 2016"

    def __init__(self, site: Site, *, hidden: NonNegativeInt = 0) -> None:
        super().__init__(site, AdditiveScore(site.dim, site.memory_dim, hidden or site.dim, normed=True))
