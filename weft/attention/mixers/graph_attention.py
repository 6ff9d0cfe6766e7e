"""Graph attention in place of self-attention: additive scores between neighbours.

Shapes: B rows · H heads · T positions · D width.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt
from torch import Tensor, nn

from weft.attention.base import RowMixer, Site, join_heads, split_heads
from weft.attention.core.dot_product import PAIRS, masked_softmax, record_context
from weft.data.batch import Layout
from weft.layers.decoder_state import State
from weft.layers.linear_norm_dropout import dropout, xavier
from weft.layers.step_recorder import record, recording

SLOPE = 0.2
"""Of the leaky ReLU for negative scores (section 3.3)."""


class GraphAttentionMixer(RowMixer):
    """e_ij = LeakyReLU(aᵀ[W x_i; W x_j]), α = softmax over the neighbours j of i, and ELU(Σ_j α_ij W x_j) in each head.

    A token is its own neighbour. The graph is that of the data (task.graph). Without one it is complete, or a chain in which
    neighbours are at most `distance` apart.

    distance: tokens on either side that are neighbours; 0: all tokens
    """

    paper = "Veličković et al. 2018"
    cost = "n²"
    uses = frozenset({"encoder"})
    ignores_key_order = reads_graph = True
    instead: ClassVar[dict[str, str]] = {
        "causal": "the published layer has no order; in a decoder use full, which has one with rotary positions",
        "cross": "a graph attention has no query; attend to a source with additive, whose score is much like it",
    }

    def __init__(self, site: Site, *, distance: NonNegativeInt = 0) -> None:
        super().__init__(site)
        self.distance = distance
        self.project = nn.Linear(site.dim, site.dim, bias=False)
        self.target, self.source = (nn.Parameter(torch.empty(site.heads, site.head_dim, 1)) for _ in range(2))
        xavier(self.project, 1)
        for part in (self.target, self.source):
            nn.init.normal_(part, std=site.head_dim**-0.5)
        if distance:
            self.receptive_field, self.ignores_key_order = "pattern", False

    def sees(self, length: int) -> Tensor:
        place = torch.arange(length)
        away = (place[:, None] - place[None]).abs()
        return away <= self.distance if self.distance else torch.ones_like(away, dtype=torch.bool)

    def mix(self, x: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        h = split_heads(self.project(x), self.site.heads)
        ours, theirs = (h @ part for part in (self.target, self.source))
        scores = F.leaky_relu(ours + theirs.transpose(2, 3), SLOPE)
        if recording():
            self._record(h, ours, theirs, scores)
        mask = None if layout is None else layout.mask[:, None, None].expand_as(scores)
        if layout is not None and layout.graph is not None:
            mask = layout.mask[:, None, None] & layout.graph[:, None]
        elif self.distance:
            near = self.sees(x.size(1)).to(x.device).expand_as(scores)
            mask = near if mask is None else mask & near
        weights = masked_softmax(scores, mask)
        context = dropout(weights, self.dropped, True) @ h
        output = F.elu(join_heads(context))
        if recording():
            record_context(context, weights, h)
            axes = "row query channel"
            record("output", output, axes, "exp(-relu(-x)) - 1 + relu(x)", x=(join_heads(context), axes))
        return output, state

    def _record(self, h: Tensor, ours: Tensor, theirs: Tensor, scores: Tensor) -> None:
        """Records scores [B, H, T, T] of h [B, H, T, D] from what tokens add as targets and as sources, [B, H, T, 1]."""
        cells = "row head {} channel"
        for name, axis, value, vector in (("targets", "query", ours, self.target), ("sources", "key", theirs, self.source)):
            operands = {"a": (vector[..., 0], "head channel"), "h": (h, cells.format(axis))}
            record(name, value[..., 0], f"row head {axis}", "sum(a * h, channel)", **operands)
        operands = {"t": (ours[..., 0], "row head query"), "s": (theirs[..., 0], "row head key")}
        record("scores", scores, PAIRS, "relu(t + s) - slope * relu(-(t + s))", **operands, slope=SLOPE)
