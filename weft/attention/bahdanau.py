"""Additive attention of Bahdanau et al. 2015, plain and with a normalised last layer."""

from typing import ClassVar

from pydantic import NonNegativeInt

from weft.attention.base import Site
from weft.attention.core.rnn_attention import AdditiveScore, ScoredAttention


class AdditiveAttention(ScoredAttention):
    """A small network scores each key: e_j = vᵀ tanh(W s + b + U h_j), α = softmax(e), context Σ α_j h_j.

    hidden: width of the scoring network; 0: the model's width
    """

    paper = "Bahdanau et al. 2015"
    normed: ClassVar[bool] = False

    def __init__(self, site: Site, *, hidden: NonNegativeInt = 0) -> None:
        super().__init__(site, AdditiveScore(site.dim, site.memory_dim, hidden or site.dim, normed=self.normed))


class AdditiveNormedAttention(AdditiveAttention):
    """Additive attention with weight normalisation: e_j = g vᵀ/‖v‖ tanh(W s + b + U h_j), α = softmax(e), context Σ α_j h_j.

    The gain g is learned separately. It starts at 1/√hidden, so that initial scores are small at any width.
    """

    paper = "Salimans & Kingma 2016"
    normed = True
