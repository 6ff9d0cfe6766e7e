"""Relative positions: terms in scores and values that depend on the distance between key and query.

Shapes: B rows · H heads · T queries · S keys · D head width.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.attention.core.dot_product import (
    PAIRS,
    AttendOptions,
    Context,
    KeyValueStore,
    masked_softmax,
    mix,
    record_context,
    visible,
)
from weft.attention.core.kv_cache import ConcatenatedKeyValues
from weft.attention.core.packed_sequences import Heads, by_rows
from weft.data.batch import Layout
from weft.layers.linear_norm_dropout import dropout
from weft.layers.step_recorder import StepsOfCaller, record, recording


@dataclass(frozen=True)
class RelativeOffsets:
    """The offset of each key from each query, away [B or 1, T, S].

    consecutive: in every row the keys are consecutive tokens and the queries the last T of them: away[t, s] = s − t − (S − T).
    """

    away: Tensor
    consecutive: bool


class RelativeScoring(nn.Module, StepsOfCaller, ABC):
    """Attention with relative positions, in place of `dot_product.attend`."""

    @abstractmethod
    def attend(self, heads: Heads, mask: Tensor | None, offsets: RelativeOffsets, options: AttendOptions) -> Context:
        """Attends from q [B, H, T, D] to k, v [B, H, S, D], which are the heads."""

    def forward(self, q: Tensor, store: KeyValueStore, options: AttendOptions) -> Context:
        _, layout, positions, _, need_weights = options
        assert positions is not None
        whole = isinstance(store, ConcatenatedKeyValues) and store.k is not None and store.k.size(2) == q.size(2)
        if whole and layout is not None and layout.packed and not need_weights:
            assert isinstance(store, ConcatenatedKeyValues) and store.k is not None and store.v is not None

            def attend_rows(heads: Heads, rows: Layout) -> Tensor:
                own = ConcatenatedKeyValues(heads[1], heads[2], rows.segments, rows.positions)
                return self(heads[0], own, options._replace(layout=rows, positions=rows.positions))[0]

            return by_rows((q, store.k, store.v), layout, attend_rows), None
        k, v, mask = visible(store, q.size(2), options)
        place, at = positions, store.key_positions()
        consecutive = isinstance(store, ConcatenatedKeyValues) and (
            store.segments is None or (whole and not (layout and layout.packed))
        )
        if consecutive:  # positions are the same in all rows
            place, at = place[:1], at[:1]
        offsets = RelativeOffsets(at[:, None, :] - place[:, :, None], consecutive)
        return self.attend((q, k, v), mask, offsets, options)


class Alibi(RelativeScoring):
    """A score falls linearly with the distance, at a rate per head: − m_h · |i − j|, m_h = 2^(−8h/H) (Press et al. 2022)."""

    def attend(self, heads: Heads, mask: Tensor | None, offsets: RelativeOffsets, options: AttendOptions) -> Context:
        count = heads[0].size(1)
        rates = torch.exp2(torch.arange(1, count + 1, device=heads[0].device) * (-8 / count))
        # In float32 at any precision of the weights: bf16 cannot represent 257.
        bias = -offsets.away.abs().float()[:, None] * rates[:, None, None]
        return mix(*heads, mask, options.dropout, options.need_weights, bias)


class Shaw(RelativeScoring):
    """Adds a vector per distance up to `furthest` to keys, and optionally to values (Shaw et al. 2018, section 3.2).

    Larger distances share the last vector of their side, and heads share all vectors. Vectors are not copied per pair: queries
    are multiplied with the few vectors, and the products are gathered.
    """

    def __init__(self, width: int, furthest: int, values: bool) -> None:
        super().__init__()
        self.furthest = furthest
        self.keys = nn.Parameter(torch.empty(2 * furthest + 1, width))
        self.values = nn.Parameter(torch.empty(2 * furthest + 1, width)) if values else None
        for table in self.parameters():
            nn.init.xavier_uniform_(table)

    def attend(self, heads: Heads, mask: Tensor | None, offsets: RelativeOffsets, options: AttendOptions) -> Context:
        q, k, v = heads
        which = (offsets.away.clamp(-self.furthest, self.furthest) + self.furthest)[:, None]
        which = which.expand(q.size(0), q.size(1), q.size(2), k.size(2))
        distances = (q @ self.keys.t().to(q.dtype)).gather(-1, which)
        scores = q @ k.transpose(-1, -2) + distances
        scaled = scores / math.sqrt(q.size(-1))
        if recording():
            self._record(heads, which, distances, scaled)
        weights = masked_softmax(scaled, mask)
        kept = dropout(weights, options.dropout).to(v.dtype)
        context = kept @ v
        if self.values is None:
            record_context(context, weights, v)
        else:
            share = kept.new_zeros(*kept.shape[:-1], self.values.size(0)).scatter_add(-1, which, kept)
            context = context + share @ self.values.to(v.dtype)
            if recording():
                operands = {"weights": (weights, PAIRS), "v": (v, "row head key channel")}
                operands["distances"] = self.values[which], "row head query key channel"
                formula = "sum(weights * (v + distances), key)"
                record("context", context, "row head query channel", formula, **operands)
        return context, weights if options.need_weights else None

    def _record(self, heads: Heads, which: Tensor, distances: Tensor, scores: Tensor) -> None:
        q, k, _ = heads
        query, products = (q, "row head query channel"), q @ k.transpose(-1, -2)
        vectors = self.keys[which], "row head query key channel"
        record("products", products, PAIRS, "sum(q * k, channel)", q=query, k=(k, "row head key channel"))
        record("distance products", distances, PAIRS, "sum(q * distances, channel)", q=query, distances=vectors)
        sides = {"products": (products, PAIRS), "distances": (distances, PAIRS)}
        record("scores", scores, PAIRS, "(products + distances) / root", **sides, root=math.sqrt(q.size(-1)))
