"""Attention of Luong et al. 2015: global, with the scores dot, general, concat and location, and local (local-m, local-p).

And global attention with the cosine as its score.
"""

from abc import ABC

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from weft.attention.base import Attended, Site
from weft.attention.core.dot_product import masked_softmax
from weft.attention.core.rnn_attention import (
    AdditiveScore,
    CosineScore,
    CountedSource,
    DotScore,
    ExactLinear,
    LocationScore,
    LuongScore,
    ScoredAttention,
    SourceAttention,
    luong_score,
)
from weft.data.batch import Layout
from weft.layers.decoder_state import State
from weft.layers.step_recorder import record, recording

PAIRS = "row query key"


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


class CosineAttention(ScoredAttention):
    """e_j = β cos(s, h_j), α = softmax(e), context Σ α_j h_j: a dot product that the lengths of vectors cannot change.

    Cosines lie between −1 and 1, so that without a strength β all weights would be nearly even. β is learned. If memory and
    query differ in width, a learned projection maps h_j to the width of s.

    strength: the initial β
    """

    paper = "Graves et al. 2014"

    def __init__(self, site: Site, *, strength: PositiveFloat = 10.0) -> None:
        super().__init__(site, CosineScore(site.dim, site.memory_dim, strength))


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

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> State:
        self.check_length(memory, layout)
        return super().read(memory, layout, values)


class WindowedAttention(SourceAttention, ABC):
    """Attention to a window of the source.

    window: D, how far to either side of its centre a query sees
    score: dot sᵀh, general sᵀWh, or concat vᵀtanh(W[s; h])
    """

    supports_packing = packing_is_quadratic = True

    def __init__(self, site: Site, *, window: PositiveInt = 10, score: LuongScore = "general") -> None:
        super().__init__(site, luong_score(score, site))
        self.window = window


class LocalMonotonicAttention(WindowedAttention):
    """Query t attends to source positions t − D … t + D only: α = softmax(e) over this window, context Σ α_j h_j.

    The paper does not say what happens past the end of the source. Here the window stays centred on the last token.
    """

    paper = "Luong et al. 2015, local-m"
    weights_sum = "one"
    receptive_field = "pattern"

    def sees(self, length: int) -> Tensor:
        place = torch.arange(length)
        return (place[:, None] - place).abs() <= self.window

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> CountedSource:
        return CountedSource.first(self.head.read(memory, layout, values))

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        source, rows = state.source, query.size(0)
        mask = source.mask(rows, layout)
        centre = torch.minimum(state.places(query, layout), source.lengths(mask) - 1)
        near = (source.places(rows)[:, None] - centre[..., None]).abs() <= self.window
        weights = masked_softmax(self.head.scores(query, source), near if mask is None else near & mask)
        return Attended(self.head.mix(weights, source), state.after(query, layout), weights[:, None] if need_weights else None)


class LocalPredictiveAttention(WindowedAttention):
    """A query attends around p = S·σ(vᵀ tanh(W s)): weights softmax(e)_j · exp(−(j − p)²/2σ²) with σ = D/2.

    The softmax covers p − D … p + D, and S is the source length. As published, the Gaussian makes weights sum to less than 1.
    """

    paper = "Luong et al. 2015, local-p"
    weights_sum = "at most one"
    receptive_field = "data"

    def __init__(self, site: Site, *, window: PositiveInt = 10, score: LuongScore = "general") -> None:
        super().__init__(site, window=window, score=score)
        self.inner = ExactLinear(site.dim, site.dim, bias=False)
        self.place = ExactLinear(site.dim, 1, bias=False)

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        rows = query.size(0)
        mask = state.mask(rows, layout)
        away = state.places(rows)[:, None] - self.centre(query, state.lengths(mask))[..., None]
        near = away.abs() <= self.window
        scores, seen = self.head.scores(query, state), near if mask is None else near & mask
        inside = masked_softmax(scores, seen, shown="weights in the window")
        weights = inside * torch.exp(-2 * (away / self.window) ** 2).to(inside.dtype)
        if recording():
            operands = {"inside": (inside, PAIRS), "away": (away, PAIRS)}
            record("weights", weights, PAIRS, "inside * exp(-2 * (away / D) ** 2)", **operands, D=self.window)
        return Attended(self.head.mix(weights, state), state, weights[:, None] if need_weights else None)

    def centre(self, query: Tensor, lengths: Tensor) -> Tensor:
        """The predicted position p [B, T], in float32 throughout: bf16 rounds position 257 to 256."""
        raw = self.place(torch.tanh(self.inner(query)))[..., 0]
        centre = lengths * raw.sigmoid()
        if recording():
            operands = {"x": (raw, "row query"), "length": (lengths, "row query")}
            record("centre", centre, "row query", "length * sigmoid(x)", **operands)
        return centre
