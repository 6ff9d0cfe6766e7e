"""Global attention of Luong et al. 2015 with the scores dot, general, concat and location."""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from weft.attention.base import Site
from weft.attention.core.single_head import AdditiveScore, DotScore, LocationScore, ScoredAttention
from weft.batch import Layout
from weft.state import State


class DotAttention(ScoredAttention):
    """e_j = sᵀh_j, α = softmax(e), context Σ α_j h_j.

    A dot product needs equal widths. If memory and query differ in width, a learned projection P maps h_j to P h_j.

    scale: whether to divide e_j by the square root of the width (Vaswani et al. 2017)
    """

    paper = "Luong et al. 2015"

    def __init__(self, site: Site, *, scale: bool = False) -> None:
        super().__init__(site, DotScore(site.dim, site.memory_dim, scale=scale))


class GeneralAttention(ScoredAttention):
    """e_j = sᵀW h_j, α = softmax(e), context Σ α_j h_j."""

    paper = "Luong et al. 2015"

    def __init__(self, site: Site) -> None:
        super().__init__(site, DotScore(site.dim, site.memory_dim, general=True))


class ConcatAttention(ScoredAttention):
    """e_j = vᵀ tanh(W [s; h_j]), α = softmax(e), context Σ α_j h_j.

    This is additive attention without a bias: W [s; h_j] is one matrix times s plus another times h_j.

    hidden: width of the scoring network; 0: the model's width
    """

    paper = "Luong et al. 2015"

    def __init__(self, site: Site, *, hidden: NonNegativeInt = 0) -> None:
        super().__init__(site, AdditiveScore(site.dim, site.memory_dim, hidden or site.dim, bias=False))


class LocationAttention(ScoredAttention):
    """e_j = (W s)_j for source position j, α = softmax(e) over the length of the source, context Σ α_j h_j.

    The scores depend on the query and the position only, not on the keys.

    max_length: number of positions; no source may be longer
    """

    paper = "Luong et al. 2015"
    ignores_key_order = False

    def __init__(self, site: Site, *, max_length: PositiveInt = 512) -> None:
        super().__init__(site, LocationScore(site.dim, max_length))
        self.max_length = max_length

    def read(self, memory: Tensor, layout: Layout | None) -> State:
        self.check_length(memory, layout)
        return super().read(memory, layout)
