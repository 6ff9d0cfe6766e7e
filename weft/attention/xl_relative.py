"""The attention of Transformer-XL: positions by distance, in four terms.

Shapes: B rows · H heads · T queries · S keys · D width of a head · M distances.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn

from weft.attention.base import Site, split_heads
from weft.attention.core.dot_product import mix
from weft.attention.core.multihead import MultiHead, MultiHeadAttention
from weft.attention.core.relative_positions import Places, RelativeLook
from weft.layers.position import SinusoidalPosition


class XlLook(RelativeLook):
    """q·k + q·R + u·k + v·R, all over √D, where R = W_R · sinusoids(i − j) belongs to the distance of query i to key j.

    The products with R are formed for all distances at once, [B, H, T, M], and then moved to where their keys are: no vector
    is copied for each pair.
    """

    def __init__(self, site: Site, max_distance: int = 0) -> None:
        super().__init__()
        self.causal, self.heads, self.furthest = site.use == "causal", site.heads, max_distance
        self.sinusoids = SinusoidalPosition(site.dim)
        self.distances = nn.Linear(site.dim, site.dim, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(site.heads, 1, site.head_dim))
        self.distance_bias = nn.Parameter(torch.zeros(site.heads, 1, site.head_dim))
        nn.init.xavier_uniform_(self.distances.weight)

    def find(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, places: Places, dropout: float, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        asked = (q + self.distance_bias.to(q.dtype)) / math.sqrt(q.size(-1))
        bias = self._in_line(asked, k.size(2)) if places.in_line else self._anywhere(asked, places.away)
        return mix(q + self.content_bias.to(q.dtype), k, v, mask, dropout, need_weights, bias)

    def _in_line(self, asked: Tensor, keys: int) -> Tensor:
        """[B, H, T, S] for queries that are the last of the tokens.

        Row t begins one place further to the left than the row before it. Read as one line, with a row taken to be one place
        shorter than it is, the rows come to stand below each other (Dai et al. 2019, appendix B).
        """
        extent = asked.size(2)
        count = keys + 1 if self.causal else keys + extent
        products = asked @ self._vectors(keys - 1, keys - 1 - count, asked)
        line = products.flatten(2)[..., extent - 1 : extent - 1 + extent * (count - 1)]
        # In memory of its own, since fused kernels want rows that begin at round addresses.
        return line.unflatten(-1, (extent, count - 1))[..., :keys].contiguous()

    def _anywhere(self, asked: Tensor, away: Tensor) -> Tensor:
        """[B, H, T, S] for queries and keys that stand `away` [B or 1, T, S] from each other, each row in its own way."""
        keys = away.size(-1)
        products = asked @ self._vectors(keys - 1, -1 if self.causal else -keys, asked)
        place = (away + keys - 1).clamp(0, products.size(-1) - 1)[:, None]
        return products.gather(-1, place.expand(*products.shape[:-1], keys))

    def _vectors(self, furthest: int, end: int, like: Tensor) -> Tensor:
        """R of the distances from `furthest` down to the one before `end`: [H, D, M]."""
        away = torch.arange(furthest, end, -1, device=like.device)[None]
        if self.furthest:
            away = away.clamp(-self.furthest, self.furthest)
        vectors = self.distances(self.sinusoids(away).to(self.distances.weight.dtype))
        return split_heads(vectors, self.heads)[0].transpose(-1, -2).to(like.dtype)


class XlRelativeAttention(MultiHeadAttention):
    """Full attention of Transformer-XL, in which content and distance are asked for separately: (q + u)·k + (q + v)·R(i − j).

    It knows nothing of where a text begins, so what was read in earlier segments can be looked at: `task.carry: memory`.
    u and v belong to each layer.

    max_distance: distances beyond this count as this, for memories longer than in training; 0: all differ
    bias: whether the projections have one; not as published
    """

    paper = "Dai et al. 2019"
    uses = frozenset({"encoder", "causal"})
    instead: ClassVar[dict[str, str]] = {"cross": "distances have no meaning between two sequences; use full"}
    weights_sum = "one"
    packs = True

    def __init__(self, site: Site, *, max_distance: NonNegativeInt = 0, bias: bool = False) -> None:
        super().__init__(site)
        self.heads = MultiHead(site, bias=bias, look=XlLook(site, max_distance))
