"""Additive attention that knows its previous alignment.

Shapes: G sources · K beams · B = G·K rows · S keys · A width of the scoring network.
"""

from dataclasses import dataclass

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Site
from weft.attention.core.dot_product import masked_softmax
from weft.attention.core.rnn_attention import AdditiveScore, SourceAttention, SourceStates, fold, kept, unfold
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import State
from weft.layers.linear_norm_dropout import to_float32
from weft.layers.step_recorder import record, recording


@dataclass
class AlignmentState:
    """The source; last [B, S], the alignment of the previous query; total [B, S], the sum of all alignments (with coverage)."""

    source: SourceStates
    last: Tensor
    total: Tensor | None


class LocationAwareAttention(SourceAttention):
    """e_j = vᵀ tanh(W s + b + U h_j + V f_j) with f = F ∗ α_{i−1}, a convolution of the previous alignment; α = softmax(β e).

    The initial alignment is on the first position. Sharpening (by β or the best k) and the window are for inputs much longer
    than those of training. With coverage, f is a convolution of Σ α instead, which starts at 0; with filters: 1 and width: 1
    this is See et al. 2017.

    hidden: width of the scoring network; 0: the model's width
    filters: channels of the convolution
    width: positions that a filter covers; odd
    sharpening: β, the inverse temperature of the softmax
    top: number of best scores to keep; 0: all
    window: w, to attend only to m − w … m + w − 1 around the median m of the previous alignment; 0: everywhere
    coverage: whether f is computed from the sum of all alignments; adds the term coverage, Σ_j min(α_j, that sum)
    """

    paper = "Chorowski et al. 2015"
    weights_sum = "one"

    def __init__(
        self,
        site: Site,
        *,
        hidden: NonNegativeInt = 0,
        filters: PositiveInt = 10,
        width: PositiveInt = 31,
        sharpening: PositiveFloat = 1.0,
        top: NonNegativeInt = 0,
        window: NonNegativeInt = 0,
        coverage: bool = False,
    ) -> None:
        if width % 2 == 0:
            raise ConfigError(f"width: a filter is centred on its position, so its width must be odd, not {width}")
        inner = hidden or site.dim
        score = AdditiveScore(site.dim, site.memory_dim, inner, exact=bool(top or window))
        super().__init__(site, score)
        self.score = score
        self.filters = nn.Conv1d(1, filters, width, padding=width // 2, bias=False)
        self.feature = nn.Linear(filters, inner, bias=False)
        self.sharpening, self.top, self.window, self.coverage = sharpening, top, window, coverage
        if top or window:
            self.receptive_field = "data"
        if coverage:
            self.extras = frozenset({"coverage"})
            self.ignores_key_order = width == 1 and not window

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> AlignmentState:
        source = self.head.read(memory, layout, values)
        last = torch.zeros_like(source.values[..., 0], dtype=to_float32(source.values).dtype)
        total = last.clone() if self.coverage else None
        last[:, :1] = 1.0
        return AlignmentState(source, last, total)

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        source, last, total = state.source, state.last, state.total
        projected, keys = self.score.query(query), source.mask(query.size(0), None)
        real = None if layout is None else layout.mask
        alignments, covered = [], []
        for t in range(query.size(1)):
            scores = self._scores(projected[:, t : t + 1], source, last if total is None else total)
            sharpened = self.sharpening * scores
            if self.sharpening != 1 and recording():
                pairs = "row query key"
                record("sharpened scores", sharpened, pairs, "beta * scores", beta=self.sharpening, scores=(scores, pairs))
            weights = masked_softmax(sharpened, self._allowed(scores, keys, last))
            alpha = to_float32(weights[:, 0])
            last = kept(real, t, alpha, last)
            if total is not None:
                covered.append(torch.minimum(alpha, total).sum(-1))
                total = kept(real, t, total + alpha, total)
            alignments.append(weights)
        weights = torch.cat(alignments, 1).to(source.values.dtype)
        extras = {"coverage": torch.stack(covered, 1)} if self.coverage and self.training else {}
        shown = weights[:, None] if need_weights else None
        return Attended(self.head.mix(weights, source), AlignmentState(source, last, total), shown, extras)

    def _scores(self, projected: Tensor, source: SourceStates, history: Tensor) -> Tensor:
        """[B, 1, S] for one query per row, projected [B, 1, A], and its past alignments, history [B, S]."""
        convolved = self.filters(history[:, None].to(self.filters.weight.dtype))
        features = self.feature(convolved.transpose(1, 2))
        sources = source.keys.size(0)
        energy = self.score.energy(fold(projected, sources), source.keys, fold(features[:, None], sources))
        return unfold(energy, projected.size(0))

    def _allowed(self, scores: Tensor, keys: Tensor | None, last: Tensor) -> Tensor | None:
        """[B, 1, S]: real keys inside the window that are among the best."""
        allowed = keys
        if self.window:
            median = (last.cumsum(-1) < 0.5 * last.sum(-1, keepdim=True)).sum(-1)
            away = torch.arange(last.size(1), device=last.device) - median[:, None]
            near = ((away >= -self.window) & (away < self.window))[:, None]
            allowed = near if allowed is None else allowed & near
        if self.top and self.top < scores.size(-1):
            held = scores if allowed is None else scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
            best = held >= held.topk(self.top, -1).values[..., -1:]
            allowed = best if allowed is None else allowed & best
        return allowed
