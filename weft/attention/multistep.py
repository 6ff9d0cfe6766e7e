"""The attention of convolutional sequence to sequence learning (Gehring et al. 2017).

Shapes: G sources · B rows · T target positions · S source positions · D width of a head.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.attention.base import Attended, Attention, join_heads, split_heads
from weft.attention.core.dot_product import attend_memory
from weft.attention.core.kv_cache import CrossAttentionMemory
from weft.attention.core.packed_sequences import packing
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.layers.decoder_state import State, shared, spread
from weft.layers.kernels.cpp_plan import Keys, PlanBuilder, Register
from weft.layers.linear_norm_dropout import to_autocast_dtype
from weft.layers.step_recorder import record, recording


@dataclass
class MultistepMemory:
    """Keys and values of the source; counts [G, n] int64: number of tokens of each segment."""

    memory: CrossAttentionMemory
    counts: Tensor = shared()

    def planned(self) -> Keys:
        """For a native search."""
        return replace(self.memory.planned(), gain=self.counts[:, 1].float().sqrt())


class MultistepAttention(Attention):
    """α_j = softmax(d · z_j), and the context is √m Σ α_j (z_j + e_j) over the m source tokens (Gehring et al. 2017).

    The memory holds keys and values side by side, [z, (z + e) √½], unless values are given on their own; neither is projected.
    The factor √m undoes the loss of variance by averaging. Scores are not divided by √D.
    """

    paper = "Gehring et al. 2017"
    uses = frozenset({"cross"})
    weights_sum = "one"
    ignores_key_order = True
    supports_packing = True

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> MultistepMemory:
        pair = memory.chunk(2, -1) if values is None else (memory, values)
        if pair[0].size(-1) != self.site.dim:
            raise ConfigError(
                f"multistep projects nothing, so keys and values need the width of the queries, {self.site.dim}, "
                f"not {pair[0].size(-1)}"
            )
        k, v = (split_heads(to_autocast_dtype(part), self.site.heads) for part in pair)
        if layout is None:
            counts = torch.full((memory.size(0), 2), memory.size(1), device=memory.device)
            return MultistepMemory(CrossAttentionMemory(k, v), counts)
        segments, numbers = layout.segments.long(), 2 if layout.offsets is None else layout.offsets.numel()
        counts = segments.new_zeros(memory.size(0), numbers).scatter_add_(1, segments, torch.ones_like(segments))
        return MultistepMemory(CrossAttentionMemory(k, v, layout.segments, packing(layout)), counts)

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        q = split_heads(to_autocast_dtype(query), self.site.heads) * math.sqrt(self.site.head_dim)
        if recording():
            cells, before = "row head query channel", split_heads(query, self.site.heads)
            record("queries", q, cells, "query * root", query=(before, cells), root=math.sqrt(self.site.head_dim))
        context, weights = attend_memory(q, state.memory, layout=layout, dropout=self.dropped, need_weights=need_weights)
        if layout is not None and layout.packed:
            tokens = state.counts.gather(1, layout.segments.long())
        else:
            tokens = spread(state.counts[:, 1:2], query.size(0))
        root = tokens.float().sqrt()[..., None].to(context.dtype)
        output = join_heads(context) * root
        if recording():
            axes, joined = "row query channel", join_heads(context)
            operands = {"context": (joined, axes), "root": (root[..., 0], "row query")}
            record("output", output, axes, "context * root", **operands)
        return Attended(output, state, weights)

    def plan(self, draft: PlanBuilder, query: Register) -> Register:
        return draft.attend_memory(query, self.site.heads, MultistepMemory.planned, scale=1.0)
