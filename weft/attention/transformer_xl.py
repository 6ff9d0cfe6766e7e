"""Transformer-XL's attention: relative positions in four terms.

Shapes: B rows · H heads · T queries · S keys · D head width · M distances.
"""

import math
from typing import ClassVar

import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn

from weft.attention.base import Site, split_heads
from weft.attention.core.dot_product import PAIRS, AttendOptions, Context, mix
from weft.attention.core.multihead import MultiHead, MultiHeadAttention
from weft.attention.core.packed_sequences import Heads
from weft.attention.core.relative_positions import RelativeOffsets, RelativeScoring
from weft.layers.embeddings_and_rotary_positions import SinusoidalPosition
from weft.layers.step_recorder import record, recording


class XlScoring(RelativeScoring):
    """(q·k + q·R + u·k + v·R) / √D, where R = W_R · sinusoids(i − j) encodes the distance from query i to key j.

    The products with R are computed for all distances at once, [B, H, T, M], and then shifted to their keys.
    """

    def __init__(self, site: Site, max_distance: int = 0) -> None:
        super().__init__()
        self.causal, self.heads, self.furthest = site.use == "causal", site.heads, max_distance
        self.sinusoids = SinusoidalPosition(site.dim)
        self.distances = nn.Linear(site.dim, site.dim, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(site.heads, 1, site.head_dim))
        self.distance_bias = nn.Parameter(torch.zeros(site.heads, 1, site.head_dim))
        nn.init.xavier_uniform_(self.distances.weight)

    def attend(self, heads: Heads, mask: Tensor | None, offsets: RelativeOffsets, options: AttendOptions) -> Context:
        q, k, v = heads
        shifted = (q + self.distance_bias.to(q.dtype)) / math.sqrt(q.size(-1))
        bias = self._consecutive(shifted, k.size(2)) if offsets.consecutive else self._anywhere(shifted, offsets.away)
        content = q + self.content_bias.to(q.dtype)
        if recording():
            bias = self._recorded((q, k, v), content, bias, offsets)
        return mix(content, k, v, mask, options.dropout, options.need_weights, bias)

    def _recorded(self, heads: Heads, content: Tensor, bias: Tensor, offsets: RelativeOffsets) -> Tensor:
        """Records both kinds of queries and the scores of distances; also keys from a memory of earlier tokens.

        Returns the scores of distances: in causal use, 0 at later tokens, which the mask hides.
        """
        (q, k, v), axes, keys = heads, "row head query channel", "row head key channel"
        plain = {"q": (q, axes)}
        u, w = ((each[:, 0], "head channel") for each in (self.content_bias, self.distance_bias))
        record("content queries", content, axes, "q + u", **plain, u=u)
        record("distance queries", q + self.distance_bias, axes, "q + v", **plain, v=w)
        if k.size(2) > q.size(2):
            record("keys with memory", k, keys)
            record("values with memory", v, keys)
        reach = k.size(2) - 1
        end = -1 if self.causal else -k.size(2)
        vectors = self._vectors(reach, end, q).transpose(-1, -2)
        place = (offsets.away + reach).clamp(0, vectors.size(1) - 1)
        apart = vectors[:, place].transpose(0, 1), "row head query key channel"
        operands = {"queries": (q + self.distance_bias, axes), "R": apart}
        seen = bias.where(offsets.away[:, None] <= 0, 0.0) if self.causal else bias
        formula = "sum(queries * R, channel) / root"
        if self.causal:
            formula, operands["earlier"] = f"where(earlier, {formula}, 0)", (offsets.away[:, None] <= 0, PAIRS)
        record("distance scores", seen, PAIRS, formula, **operands, root=math.sqrt(q.size(-1)))
        return seen

    def _consecutive(self, shifted: Tensor, keys: int) -> Tensor:
        """[B, H, T, S] for queries that are the last of the tokens.

        Each row of products starts one position further left than the row above. Flattened, and reshaped to rows that are one
        shorter, the rows line up (Dai et al. 2019, appendix B).
        """
        extent = shifted.size(2)
        count = keys + 1 if self.causal else keys + extent
        products = shifted @ self._vectors(keys - 1, keys - 1 - count, shifted)
        line = products.flatten(2)[..., extent - 1 : extent - 1 + extent * (count - 1)]
        # Contiguous, since fused kernels need aligned rows.
        return line.unflatten(-1, (extent, count - 1))[..., :keys].contiguous()

    def _anywhere(self, shifted: Tensor, away: Tensor) -> Tensor:
        """[B, H, T, S] for queries and keys at any distances `away` [B or 1, T, S]."""
        keys = away.size(-1)
        products = shifted @ self._vectors(keys - 1, -1 if self.causal else -keys, shifted)
        place = (away + keys - 1).clamp(0, products.size(-1) - 1)[:, None]
        return products.gather(-1, place.expand(*products.shape[:-1], keys))

    def _vectors(self, furthest: int, end: int, like: Tensor) -> Tensor:
        """R for the distances from `furthest` down to `end` + 1: [H, D, M]."""
        away = torch.arange(furthest, end, -1, device=like.device)[None]
        if self.furthest:
            away = away.clamp(-self.furthest, self.furthest)
        vectors = self.distances(self.sinusoids(away).to(self.distances.weight.dtype))
        return split_heads(vectors, self.heads)[0].transpose(-1, -2).to(like.dtype)


class XlRelativeAttention(MultiHeadAttention):
    """Full attention of Transformer-XL with separate scores for content and distance: (q + u)·k + (q + v)·R(i − j).

    It has no absolute positions, so earlier segments can be attended to: `task.carry: memory`. Each layer has its own u and v.

    max_distance: larger distances are clamped to this, for memories longer than in training; 0: no limit
    bias: whether the projections have a bias; the published model has none
    """

    paper = "Dai et al. 2019"
    uses = frozenset({"encoder", "causal"})
    instead: ClassVar[dict[str, str]] = {"cross": "distances have no meaning between two sequences; use full"}
    weights_sum = "one"
    supports_packing = True

    def __init__(self, site: Site, *, max_distance: NonNegativeInt = 0, bias: bool = False) -> None:
        super().__init__(site)
        self.heads = MultiHead(site, bias=bias, scoring=XlScoring(site, max_distance))
