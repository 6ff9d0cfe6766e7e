"""Induced set attention: attention through a few learned points, for sets and long sequences."""

from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import RowMixer, Site
from weft.attention.core.multihead import MultiHead, MultiheadBlock
from weft.data.batch import Layout
from weft.layers.decoder_state import State


class InducedSetMixer(RowMixer):
    """Learned points attend to all tokens, and each token attends to the points: ISAB of the Set Transformer.

    With H = MAB(I, X) the block is MAB(X, H); its outer residual, norm and network are those of the model's own block. In a
    model without positions (position: none) the order of tokens does not matter.

    points: number of learned points
    """

    paper = "Lee et al. 2019"
    cost = "n·points"
    uses = frozenset({"encoder"})
    ignores_key_order = True
    instead: ClassVar[dict[str, str]] = {
        "causal": "its points attend to the whole set, including future tokens; in a decoder use linear, local or full",
        "cross": "it mixes a set with itself and has no query; attend to a source with an attention such as full",
    }

    def __init__(self, site: Site, *, points: PositiveInt = 32) -> None:
        super().__init__(site)
        inner = Site("cross", site.dim, site.heads, dropout=site.dropout)
        self.points = nn.Parameter(torch.empty(points, site.dim))
        self.gather, self.spread = MultiheadBlock(inner), MultiHead(inner)
        nn.init.xavier_uniform_(self.points)

    def mix(self, x: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        summary, _ = self.gather(self.points.expand(x.size(0), -1, -1), x, layout)
        return self.spread.run(x, self.spread.init_state(summary, None, x.size(0), None), None, None, False).context, None
