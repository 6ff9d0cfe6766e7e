"""Pooling by learned queries: with scores of their own, or by multihead attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.attention.base import Site
from weft.attention.core.dot_product import masked_softmax
from weft.attention.core.multihead import MultiheadBlock
from weft.batch import Layout
from weft.pooling.base import Pooled, Pooling


class SelfAttentivePooling(Pooling):
    """A = softmax(U tanh(W H)) applies `rows` learned queries to a sequence H; the vectors are A H.

    One row is the static attention of Yang et al. 2016; several add the term "diversity", ‖AAᵀ − I‖² (Lin et al. 2017).

    rows: number of learned queries and of pooled vectors
    hidden: width of the scoring network; 0: the width of the sequence
    """

    paper = "Lin et al. 2017; Yang et al. 2016"
    weights_sum = "one"
    extras = frozenset({"diversity"})

    def __init__(self, dim: int, *, rows: PositiveInt = 1, hidden: NonNegativeInt = 0) -> None:
        super().__init__(dim, rows)
        self.hidden = nn.Linear(dim, hidden or dim)
        self.questions = nn.Linear(hidden or dim, rows, bias=False)

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        scores = self.questions(torch.tanh(self.hidden(memory))).transpose(1, 2)
        weights = masked_softmax(scores, None if layout is None else layout.ok[:, None].expand_as(scores))
        extras = {}
        if self.training:
            one = torch.eye(weights.size(1), device=weights.device, dtype=weights.dtype)
            extras["diversity"] = (weights @ weights.transpose(1, 2) - one).pow(2).sum((1, 2))
        return Pooled(weights @ memory, weights, extras)


class MultiheadPooling(Pooling):
    """Learned seeds attend to the whole sequence with several heads: PMA(Z) = MAB(S, rFF(Z)) of the Set Transformer.

    After an encoder that ignores order (position: none, encoder_self: isab) the pooled vectors do not depend on the order of
    tokens.

    rows: number of seeds and of pooled vectors
    heads: attention heads, which divide the width
    """

    paper = "Lee et al. 2019"
    weights_sum = "one"

    def __init__(self, dim: int, *, rows: PositiveInt = 1, heads: PositiveInt = 4) -> None:
        super().__init__(dim, rows)
        self.seeds = nn.Parameter(torch.empty(rows, dim))
        self.network = nn.Linear(dim, dim)
        self.block = MultiheadBlock(Site("cross", dim, heads))
        nn.init.xavier_uniform_(self.seeds)

    def forward(self, memory: Tensor, layout: Layout | None = None) -> Pooled:
        seeds = self.seeds.expand(memory.size(0), -1, -1)
        vectors, weights = self.block(seeds, F.relu(self.network(memory)), layout, need_weights=True)
        if layout is not None:
            vectors = torch.where(layout.ok.any(1)[:, None, None], vectors, 0.0)
        return Pooled(vectors, weights.mean(1))
