"""Linformer: keys and values of all positions are projected to a few rows."""

from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site, join_heads
from weft.attention.core.dot_product import attend_memory
from weft.attention.core.kv_cache import CrossAttentionMemory
from weft.attention.core.multihead import Projections
from weft.data.batch import Layout
from weft.layers.decoder_state import State
from weft.layers.step_recorder import record, recording


class LinformerAttention(Attention):
    """softmax(Q(EK)ᵀ/√d) FV, where learned E and F project the n positions to `rank` rows.

    Padding contributes nothing to any row, so the output for a sentence does not depend on the rest of its batch.

    rank: number of rows that keys and values are projected to
    max_length: number of positions of E and F; no sequence may be longer
    share: whether each head has its own E and F (none), all heads share them (heads), or keys and values share them too
      (key_value)
    bias: whether the projections of queries, keys and values have a bias
    """

    paper = "Wang et al. 2020"
    cost = "n·rank"
    uses = frozenset({"encoder", "cross"})
    instead: ClassVar[dict[str, str]] = {
        "causal": "each of its rows mixes all positions, including future ones; use performer, linear, rfa or compressed"
    }

    def __init__(
        self,
        site: Site,
        *,
        rank: PositiveInt = 128,
        max_length: PositiveInt = 1024,
        share: Literal["none", "heads", "key_value"] = "heads",
        bias: bool = True,
    ) -> None:
        super().__init__(site)
        self.max_length: int = max_length
        self.heads = Projections(site, bias=bias)
        heads = site.heads if share == "none" else 1
        self.mix = nn.Parameter(torch.randn(1 if share == "key_value" else 2, heads, rank, max_length) * rank**-0.5)

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> State:
        joint = self.heads.joint_key_value(memory, values)
        if recording():
            self.heads.record_heads(("keys", "values"), memory, self.heads.key_value, joint, self)
        return self._shorten(*self.heads.halves(joint), layout)

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        if append is None:
            q, memory = self.heads.queries(query), state
            if recording():
                self.heads.record_heads(("queries",), query, self.heads.query, join_heads(q))
        else:
            q, k, v = self.heads.own(append)
            if recording():
                joint = torch.cat([join_heads(part) for part in (q, k, v)], -1)
                self.heads.record_heads(("queries", "keys", "values"), append, self.heads.query_key_value, joint)
            memory = self._shorten(k, v, layout)
        context, _ = attend_memory(q, memory, layout=None, dropout=self.dropped)
        return Attended(self.heads.join(context), state)

    def _shorten(self, k: Tensor, v: Tensor, layout: Layout | None) -> CrossAttentionMemory:
        """k, v [B, H, S, D] → [B, H, rank, D]."""
        self.check_length(k[:, 0], layout)
        length = min(k.size(2), self.max_length)  # the batch may be padded beyond its longest row
        if layout is not None:
            here = layout.mask[:, None, :, None]
            k, v = torch.where(here, k, 0.0), torch.where(here, v, 0.0)
        mix, k, v = self.mix[..., :length], k[:, :, :length], v[:, :, :length]
        mixed = mix[0] @ k, mix[-1] @ v
        if recording():
            axes = "row head slot channel"
            for name, shares, whole, part in (("keys", mix[0], k, mixed[0]), ("values", mix[-1], v, mixed[1])):
                operands = {"E": (shares.expand(k.size(1), -1, -1), "head slot key"), "x": (whole, "row head key channel")}
                record(f"mixed {name}", part, axes, "sum(E * x, key)", self, **operands)
        return CrossAttentionMemory(*mixed)
