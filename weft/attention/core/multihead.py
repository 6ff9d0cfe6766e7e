"""Multi-head attention: projections to several heads, and the flow that dot-product attentions share."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site, join_heads, split_heads
from weft.attention.core.dot_product import AttendOptions, Context, KeyValueStore, attend, attend_memory
from weft.attention.core.kv_cache import ConcatenatedKeyValues, CrossAttentionMemory, KeyValueCache, SlidingWindowCache
from weft.attention.core.packed_sequences import attend_joint, packing
from weft.data.batch import Layout
from weft.layers.decoder_state import State
from weft.layers.embeddings_and_rotary_positions import quarter_turn, rotate, rotation
from weft.layers.kernels.cpp_plan import PlanBuilder, Register
from weft.layers.linear_norm_dropout import xavier
from weft.layers.step_recorder import record, recording

Store = KeyValueStore | SlidingWindowCache

Scoring = Callable[[Tensor, Any, AttendOptions], Context]
"""Attention of queries q [B, H, T, D] to a store, like `dot_product.attend`."""


class Projections(nn.Module):
    """The four projections of Vaswani et al. 2017, section 3.2.2.

    In self-attention one matrix holds queries, keys and values; in cross-attention one holds keys and values.
    """

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        super().__init__()
        self.site = site
        self.width = site.head_dim
        if site.use == "cross":
            self.query = nn.Linear(site.dim, site.dim, bias=bias)
            self.key_value = nn.Linear(site.memory_dim, 2 * site.dim, bias=bias)
        else:
            self.query_key_value = nn.Linear(site.dim, 3 * site.dim, bias=bias)
        self.out = nn.Linear(site.dim, site.dim, bias=bias)
        for layer in self.children():
            assert isinstance(layer, nn.Linear)
            xavier(layer, layer.out_features // site.dim)

    def queries(self, x: Tensor) -> Tensor:
        """q [B, H, T, D] of cross-attention."""
        return split_heads(self.query(x), self.site.heads)

    def joint_key_value(self, memory: Tensor, values: Tensor | None = None) -> Tensor:
        """Keys and values of cross-attention side by side, [B, S, 2·H·D]; values of their own, if they are not the memory."""
        joint = self.key_value(memory)
        if values is None or values is memory:
            return joint
        return torch.cat([joint[..., : self.site.dim], self.key_value(values)[..., self.site.dim :]], -1)

    def keys_values(self, memory: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """k, v [B, H, S, D] of cross-attention."""
        return self.halves(self.joint_key_value(memory, values))

    def halves(self, joint: Tensor) -> tuple[Tensor, Tensor]:
        """k, v [B, H, S, D] from their joint product."""
        k, v = (split_heads(part, self.site.heads) for part in joint.chunk(2, -1))
        return k, v

    def own(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [B, H, T, D] of self-attention."""
        q, k, v = (split_heads(part, self.site.heads) for part in self.query_key_value(x).chunk(3, -1))
        return q, k, v

    def paired(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """q and k of self-attention as one tensor [2, B, H, T, D], and v [B, H, T, D], for operations on both q and k."""
        both, v = self.query_key_value(x).split([2 * self.site.dim, self.site.dim], -1)
        return both.unflatten(-1, (2, self.site.heads, self.width)).permute(2, 0, 3, 1, 4), split_heads(v, self.site.heads)

    def join(self, context: Tensor) -> Tensor:
        """Projects the context of the heads, [B, H, T, D] in any precision → [B, T, H·D]."""
        joined = join_heads(context)
        if not torch.is_autocast_enabled(joined.device.type):
            joined = joined.to(self.out.weight.dtype)
        output = self.out(joined)
        if recording():
            self.record_output(context, output)
        return output

    def record_heads(
        self, names: Sequence[str], x: Tensor, layer: nn.Module, joint: Tensor, of: nn.Module | None = None
    ) -> None:
        """Records the parts of a joint product [B, T, n·H·D] of a layer and x [B, T, M], each with its heads."""
        for place, (name, part) in enumerate(zip(names, joint.chunk(len(names), -1), strict=True)):
            axis = "query" if name == "queries" else "key"
            value, axes = split_heads(part, self.site.heads), f"row head {axis} channel"
            if type(layer) is not nn.Linear:  # its weights are rounded, or have adapters
                record(name, value, axes, "", of)
                continue
            shape = self.site.heads, self.width
            weight, bias = (None if each is None else each.chunk(len(names))[place] for each in (layer.weight, layer.bias))
            operands = {"W": (weight.unflatten(0, shape), "head channel input"), "x": (x, f"row {axis} input")}
            if bias is not None:
                operands["b"] = (bias.view(shape), "head channel")
            record(name, value, axes, "sum(W * x, input)" + (" + b" if bias is not None else ""), of, **operands)

    def record_output(self, context: Tensor, output: Tensor) -> None:
        """Records the projection of the context of the heads [B, H, T, D]."""
        if type(self.out) is not nn.Linear:
            return record("output", output, "row query channel")
        weight = self.out.weight.unflatten(1, (self.site.heads, self.width))
        operands = {"W": (weight, "channel head input"), "context": (context, "row head query input")}
        if self.out.bias is not None:
            operands["b"] = (self.out.bias, "channel")
        formula = "sum(W * context, head, input)" + ("" if self.out.bias is None else " + b")
        return record("output", output, "row query channel", formula, **operands)


class MultiHead(Projections):
    """Multi-head attention of Vaswani et al. 2017, section 3.2, with interchangeable parts.

    scoring: how queries attend to keys
    past: how many earlier tokens they can see; None: all
    rotary: base of rotary positions; None: no rotation
    """

    def __init__(
        self, site: Site, *, bias: bool = True, scoring: Scoring = attend, past: int | None = None, rotary: float | None = None
    ) -> None:
        super().__init__(site, bias=bias)
        self.look, self.past, self.rotary = scoring, past, rotary

    def init_state(self, memory: Tensor | None, layout: Layout | None, rows: int, room: int | None) -> State:
        if self.site.use == "cross":
            assert memory is not None
            return self.read(memory, layout)
        state: Store = ConcatenatedKeyValues()
        if room is not None and self.site.use == "causal":
            sizes, like, past = (rows, self.site.heads, room, self.width), self.out.weight, self.past
            state = KeyValueCache.empty(*sizes, like) if past is None else SlidingWindowCache.empty(*sizes, past, like)
        return state if memory is None else self._append(self.query_key_value(memory), state, layout)[1]

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> CrossAttentionMemory:
        joint = self.joint_key_value(memory, values)
        return CrossAttentionMemory.of(*self.halves(joint), layout, joint)

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        dropout = self.site.dropout if self.training else 0.0
        if append is None:
            q = self.queries(query)
            if recording():
                self.record_heads(("queries",), query, self.query, join_heads(q))
            context, weights = attend_memory(q, state, layout=layout, dropout=dropout, need_weights=need_weights)
        else:
            if append is not query:
                raise ValueError("in self-attention `append` must be the query tensor itself")
            joint = self.query_key_value(append)
            if not need_weights and (whole := self._whole(joint, state, layout, dropout)) is not None:
                return Attended(self.out(whole), state)
            if recording():
                self.record_heads(("queries", "keys", "values"), append, self.query_key_value, joint)
            q, state, positions = self._append(joint, state, layout)
            options = AttendOptions(self.site.use == "causal", layout, positions, dropout, need_weights)
            context, weights = self.look(q, state, options)
        output = self.out(join_heads(context))
        if recording():
            self.record_output(context, output)
        return Attended(output, state, weights)

    def _whole(self, joint: Tensor, state: Store, layout: Layout | None, dropout: float) -> Tensor | None:
        """Self-attention [1, T, H·D] within a packed row, if one kernel can compute it from the joint product.

        Nothing can follow such a row, so its keys are not stored.
        """
        segments, plain = packing(layout), self.look is attend and self.rotary is None
        if segments is None or not plain or not isinstance(state, ConcatenatedKeyValues) or state.k is not None:
            return None
        return attend_joint(joint, self.site.heads, segments, causal=self.site.use == "causal", dropout=dropout)

    def _append(self, joint: Tensor, state: Store, layout: Layout | None) -> tuple[Tensor, Store, Tensor]:
        """The queries of a joint product [B, T, 3·H·D], the store with its keys and values appended, and the positions."""
        both, v = joint.split([2 * self.site.dim, self.site.dim], -1)
        both, v = split_heads(both, 2 * self.site.heads), split_heads(v, self.site.heads)
        positions = state.place(joint, layout)
        if self.rotary is not None:
            turn = self._rotation(positions, layout, both.dtype)
            both = rotate(both, turn)
            if recording():
                self._record_rotation(joint, both, turn)
        q, k = both.chunk(2, 1)
        return q, state.append(k, v, layout), positions

    def _record_rotation(self, joint: Tensor, rotated: Tensor, turn: tuple[Tensor, Tensor]) -> None:
        """Records the rotated queries and keys, each pair of channels turned by the angle of its position."""
        before = split_heads(joint[..., : 2 * self.site.dim], 2 * self.site.heads)
        for name, axis, plain, part in zip(
            ("queries", "keys"), ("query", "key"), before.chunk(2, 1), rotated.chunk(2, 1), strict=True
        ):
            axes = f"row head {axis} channel"
            cos, sin = ((each, axes) for each in turn)
            operands = {"x": (plain, axes), "cos": cos, "turned": (quarter_turn(plain), axes), "sin": sin}
            record(f"rotated {name}", part, axes, "x * cos + turned * sin", **operands)

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        """Plans plain products over all tokens or the last `past`; a mechanism with another scoring must not call this."""
        if self.site.use == "cross":
            query, heads = draft.linear(self.query, x), self.site.heads
            if draft.memory is None:
                return draft.linear(self.out, draft.attend_memory(query, heads, CrossAttentionMemory.planned))
            return draft.linear(self.out, draft.attend_tokens(query, draft.linear(self.key_value, draft.memory), heads))
        joint = draft.linear(self.query_key_value, x)
        if self.rotary is not None:
            draft.rotate(joint, self.site.heads, self._rotation_table)
        causal = self.site.use == "causal"
        return draft.linear(self.out, draft.attend(joint, self.site.heads, self.past, causal=causal))

    def _rotation_table(self, count: int) -> Tensor:
        """[count, 2, D]: cosines and sines of the first positions."""
        turn = self._rotation(torch.arange(count)[None], None, torch.float32)
        return torch.cat(turn)[:, 0].transpose(0, 1)

    def _rotation(self, positions: Tensor, layout: Layout | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rotation at these positions. On a whole sequence it is the same for all layers and computed once."""
        assert self.rotary is not None
        make = partial(rotation, positions, self.width, self.rotary, dtype)
        if layout is None or positions is not layout.positions:
            return make()
        return layout.cached(("rotation", self.width, self.rotary, dtype), make)


class MultiHeadAttention(Attention):
    """An attention that consists of its heads alone."""

    heads: MultiHead

    def init_state(
        self, memory: Tensor | None = None, layout: Layout | None = None, *, rows: int = 1, room: int | None = None
    ) -> State:
        state = self.heads.init_state(memory, layout, rows, room)
        if recording() and memory is not None and isinstance(state, CrossAttentionMemory):
            joint = torch.cat([join_heads(state.k), join_heads(state.v)], -1)
            self.heads.record_heads(("keys", "values"), memory, self.heads.key_value, joint, of=self)
        return state

    def read(self, memory: Tensor, layout: Layout | None, values: Tensor | None = None) -> State:
        return self.heads.read(memory, layout, values)

    def run(self, query: Tensor, state: State, append: Tensor | None, layout: Layout | None, need_weights: bool) -> Attended:
        return self.heads.run(query, state, append, layout, need_weights)


class MultiheadBlock(nn.Module):
    """MAB(X, Y) = norm(H + relu(W H)), H = norm(X + attention(X, Y)): a vector of X attends to the set Y (Lee et al. 2019)."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.attention = MultiHead(site)
        self.network = nn.Linear(site.dim, site.dim)
        self.norm_attention, self.norm_network = nn.LayerNorm(site.dim), nn.LayerNorm(site.dim)

    def forward(self, x: Tensor, y: Tensor, layout: Layout | None = None, need_weights: bool = False) -> Context:
        """x [B, R, D], y [B, S, D] with its layout → [B, R, D], and the weights [B, H, R, S] if requested."""
        attended = self.attention.run(x, self.attention.init_state(y, layout, y.size(0), None), None, None, need_weights)
        hidden = self.norm_attention(x + attended.context)
        return self.norm_network(hidden + F.relu(self.network(hidden))), attended.weights
