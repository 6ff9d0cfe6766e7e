"""Pooling by multihead attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Site
from weft.attention.core.multihead import MultiheadBlock
from weft.batch import Layout
from weft.pooling.base import Pooled, Pooling


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
