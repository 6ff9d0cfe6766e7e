"""The multihead attention block of the Set Transformer (Lee et al. 2019, section 3.1)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Site
from weft.attention.core.multihead import MultiHead
from weft.batch import Layout


class MultiheadBlock(nn.Module):
    """MAB(X, Y) = norm(H + relu(W H)), H = norm(X + attention(X, Y)): each vector of X attends to the set Y."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.attention = MultiHead(site)
        self.network = nn.Linear(site.dim, site.dim)
        self.norm_attention, self.norm_network = nn.LayerNorm(site.dim), nn.LayerNorm(site.dim)

    def forward(
        self, x: Tensor, y: Tensor, layout: Layout | None = None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """x [B, R, D], y [B, S, D] with its layout → [B, R, D], and the weights [B, H, R, S] if requested."""
        attended = self.attention.run(x, self.attention.start(y, layout, y.size(0), None), None, None, need_weights)
        hidden = self.norm_attention(x + attended.context)
        return self.norm_network(hidden + F.relu(self.network(hidden))), attended.weights
