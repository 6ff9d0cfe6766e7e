"""Fused kernels, masks and the growing K/V store; with `ragged.py`, the only file that knows them.

Shape letters: G sources · K beams · B = G·K rows · H heads · T queries · S keys · R room · D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.attention.ragged import Packing, attend_ragged, packing, serves
from weft.batch import Layout
from weft.layers.dropout import dropout
from weft.state import shared

# cuDNN's kernel makes a plan for every new shape, and batches of text have many: the likely cause of slow first steps.
torch.backends.cuda.enable_cudnn_sdp(False)

SHORT = 128 * 128
"""Queries × keys up to which a CPU is better off without the fused kernel."""

Pattern = Callable[[Tensor, Tensor], Tensor]
"""(query positions [B, T, 1], key positions [B, 1, S]) → [B, H or 1, T, S] bool: which pairs may look at each other."""


@dataclass
class Plain:
    """Keys and values as they were computed, for whole sequences; further pieces are concatenated, so it needs no room.

    k, v [B, H, S, D] · segments, positions [B, S], None while every token is real and in order.
    """

    k: Tensor | None = None
    v: Tensor | None = None
    segments: Tensor | None = None
    positions: Tensor | None = None

    def place(self, query: Tensor, layout: Layout | None) -> Tensor:
        """[B, T] positions of the tokens about to be appended (`query` only says how many)."""
        rank = ranks(query, layout)
        if self.k is None:
            return rank
        if self.segments is None:
            return rank + self.k.size(2)
        return rank + (self.segments > 0).sum(1, keepdim=True)

    def append(self, k: Tensor, v: Tensor, layout: Layout | None) -> Plain:
        if self.k is None or self.v is None:
            return Plain(k, v, None if layout is None else layout.segments, None if layout is None else layout.positions)
        positions = torch.cat([self._positions(), self.place(k[:, 0], layout)], 1)
        if self.segments is None and layout is None:
            segments = None
        else:
            new = torch.ones_like(k[:, 0, :, 0], dtype=torch.int32) if layout is None else layout.segments
            old = torch.ones_like(self.k[:, 0, :, 0], dtype=torch.int32) if self.segments is None else self.segments
            segments = torch.cat([old, new], 1)
        return Plain(torch.cat([self.k, k], 2), torch.cat([self.v, v], 2), segments, positions)

    def _positions(self) -> Tensor:
        if self.positions is not None:
            return self.positions
        assert self.k is not None
        return ranks(self.k[:, 0], None)

    def key_positions(self) -> Tensor:
        """[B, S]."""
        return self._positions()


@dataclass
class Cache:
    """Keys and values in a store of fixed size, written once and never moved.

    k, v [G, H, K, R, D]: cell (g, b, s) was written by beam b of source g as its token number s.
    ancestry [G, K, R] int16: which beam's cell holds token s of beam b, so beams are reordered without copying.
    length [G]: tokens stored (the beams of a source have equally many).
    owned: above `widest` beams the cells are copied instead, and every beam owns its row.
    """

    k: Tensor
    v: Tensor
    ancestry: Tensor
    length: Tensor
    owned: bool = False
    widest: ClassVar[int] = 8

    @staticmethod
    def empty(rows: int, heads: int, room: int, width: int, like: Tensor) -> Cache:
        k = torch.zeros(rows, heads, 1, room, width, dtype=store_dtype(like), device=like.device)
        ancestry = torch.zeros(rows, 1, room, dtype=torch.int16, device=like.device)
        return Cache(k, torch.zeros_like(k), ancestry, torch.zeros(rows, dtype=torch.long, device=like.device))

    def place(self, query: Tensor, layout: Layout | None) -> Tensor:
        """[B, T] positions of the tokens about to be appended."""
        beams = self.k.size(2)
        return ranks(query, layout) + self.length.repeat_interleave(beams)[:, None]

    def append(self, k: Tensor, v: Tensor, layout: Layout | None) -> Cache:
        """Writes k, v [B, H, T, D]. Cells of tokens that are not real lie beyond the length: the next ones overwrite them."""
        sources, heads, beams, _, width = self.k.shape
        extent = k.size(2)
        place = self.length[:, None, None] + torch.arange(extent, device=k.device)
        place = place.expand(sources, beams, extent)
        source = torch.arange(sources, device=k.device)[:, None, None]
        beam = torch.arange(beams, device=k.device)[None, :, None]
        for store, new in ((self.k, k), (self.v, v)):
            cells = new.reshape(sources, beams, heads, extent, width).transpose(2, 3)
            store.permute(0, 2, 3, 1, 4).index_put_((source, beam, place), cells.to(store.dtype))
        self.ancestry.index_put_((source, beam, place), beam.to(torch.int16).expand(place.shape))
        fed = extent if layout is None else layout.ok.view(sources, beams, extent)[:, 0].sum(-1)
        return replace(self, length=self.length + fed)

    def key_positions(self) -> Tensor:
        """[1, R]: a cell's number is its token's position."""
        return torch.arange(self.k.size(3), device=self.k.device)[None]

    def select(self, rows: Tensor, groups: Tensor | None) -> Cache:
        sources, heads, beams, room, width = self.k.shape
        if groups is None and rows.numel() == sources * beams and not self.owned:
            parent = (rows.view(sources, beams) % beams)[..., None].expand(sources, beams, room)
            return replace(self, ancestry=self.ancestry.gather(1, parent))
        wide = rows.numel() // (sources if groups is None else groups.numel())
        if groups is None and beams == 1 and wide <= self.widest:
            k, v = (F.pad(store, (0, 0, 0, 0, 0, wide - 1)) for store in (self.k, self.v))
            return replace(self, k=k, v=v, ancestry=self.ancestry.expand(sources, wide, room).contiguous())
        k, v = (
            dense.index_select(0, rows).view(-1, wide, heads, room, width).transpose(1, 2).contiguous()
            for dense in self.dense()
        )
        own = torch.arange(wide, device=rows.device, dtype=torch.int16)[None, :, None].expand(k.size(0), wide, room)
        length = self.length if groups is None else self.length.index_select(0, groups)
        return Cache(k, v, own.contiguous(), length, owned=wide > self.widest)

    def grow(self, room: int) -> Cache:
        more = room - self.k.size(3)
        if more <= 0:
            return self
        k, v = (F.pad(store, (0, 0, 0, more)) for store in (self.k, self.v))
        return replace(self, k=k, v=v, ancestry=F.pad(self.ancestry, (0, more)))

    def dense(self) -> tuple[Tensor, Tensor]:
        """k, v [B, H, R, D] as each beam sees them, for what must touch the keys themselves."""
        sources, heads, beams, room, width = self.k.shape
        if self.owned or beams == 1:
            return self.k.transpose(1, 2).flatten(0, 1), self.v.transpose(1, 2).flatten(0, 1)
        cell = self.ancestry.long()[:, None, :, :, None].expand(sources, heads, beams, room, width)
        k, v = (store.gather(2, cell).transpose(1, 2).flatten(0, 1) for store in (self.k, self.v))
        return k, v


@dataclass
class Memory:
    """Keys and values of a source, stored once for all its beams. k, v [G, H, S, D] · segments [G, S] or None.

    packing: where the sentences of a packed row are.
    """

    k: Tensor = shared()
    v: Tensor = shared()
    segments: Tensor | None = shared(default=None)
    packing: Packing | None = shared(default=None)

    @staticmethod
    def of(k: Tensor, v: Tensor, layout: Layout | None) -> Memory:
        return Memory(k, v, None if layout is None else layout.segments, packing(layout))


def attend(
    q: Tensor,
    store: Plain | Cache,
    *,
    causal: bool,
    layout: Layout | None,
    positions: Tensor | None = None,
    pattern: Pattern | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of queries q [B, H, T, D] over a store to which their own keys were appended last.

    `positions` [B, T] are the queries' own (from `store.place` before appending); only a `Cache` or a pattern needs them.
    """
    if isinstance(store, Cache):
        assert positions is not None
        return _attend_cache(q, store, positions, pattern, dropout, need_weights)
    assert store.k is not None and store.v is not None
    extent, total = q.size(2), store.k.size(2)
    whole = extent == total
    packed = layout is not None and layout.packed
    if causal and whole and not packed and pattern is None and _fused(q, total, need_weights):
        # Real tokens come first, so a real query never reaches a padded key: the triangle alone is enough.
        return F.scaled_dot_product_attention(q, store.k, store.v, dropout_p=dropout, is_causal=True), None
    pieces = packing(layout)
    if pieces and whole and pattern is None and not need_weights and serves(q, pieces, pieces):
        return attend_ragged(q, store.k, store.v, pieces, pieces, causal=causal, dropout=dropout), None
    mask = _segment_mask(store.segments, layout if packed else None)
    if causal:
        order = torch.arange(total, device=q.device)
        mask = _both(mask, (order[None] <= order[total - extent :, None])[None, None])
    if pattern is not None:
        assert positions is not None
        mask = _both(mask, pattern(positions[:, :, None], store.key_positions()[:, None, :]))
    return mix(q, store.k, store.v, mask, dropout, need_weights)


def attend_memory(
    q: Tensor, memory: Memory, *, layout: Layout | None, dropout: float = 0.0, need_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Cross-attention of queries q [B, H, T, D]; the beams of a source become more queries over its one memory."""
    sources = memory.k.size(0)
    rows, heads, extent, width = q.shape
    pieces = packing(layout)
    if pieces and memory.packing and not need_weights and serves(q, pieces, memory.packing):
        return attend_ragged(q, memory.k, memory.v, pieces, memory.packing, causal=False, dropout=dropout), None
    packed = layout is not None and layout.packed
    mask = _segment_mask(memory.segments, layout if packed else None)
    beams = rows // sources
    if beams == 1:
        return mix(q, memory.k, memory.v, mask, dropout, need_weights)
    q = q.view(sources, beams, heads, extent, width).transpose(1, 2).reshape(sources, heads, beams * extent, width)
    context, weights = mix(q, memory.k, memory.v, mask, dropout, need_weights)
    return _rows(context, beams), None if weights is None else _rows(weights, beams)


def mix(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, share: float, need_weights: bool) -> tuple[Tensor, Tensor | None]:
    """softmax(q kᵀ / √D) v. A query that may look at nothing finds 0.

    Fused unless the weights are wanted; and on a CPU only for long sequences, since for short ones the plain products are up to
    six times as fast there, the backward pass included.
    """
    if _fused(q, k.size(2), need_weights):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=share), None
    weights = masked_softmax(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)), mask)
    return dropout(weights, share) @ v, weights if need_weights else None


def _fused(q: Tensor, keys: int, need_weights: bool) -> bool:
    """Whether the fused kernel serves and pays."""
    return not need_weights and (q.device.type != "cpu" or q.size(2) * keys > SHORT)


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis where `mask` allows; rows without any allowed entry are 0, forward and backward."""
    if mask is None:
        return scores.softmax(-1)
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)


def _attend_cache(
    q: Tensor, store: Cache, positions: Tensor, pattern: Pattern | None, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    sources, heads, beams, room, width = store.k.shape
    extent = q.size(2)
    cells = store.key_positions()[:, None, :]
    seen = (cells <= positions[:, :, None])[:, None]
    if pattern is not None:
        seen = seen & pattern(positions[:, :, None], cells)
    if beams == 1 or store.owned or need_weights or pattern is not None:
        k, v = store.dense()
        return mix(q, k, v, seen, dropout, need_weights)
    # All beams of a source look at all its cells in one call, each allowed only the cells of its ancestors.
    beam = torch.arange(beams, device=q.device, dtype=torch.int16)[:, None]
    mine = store.ancestry[:, :, None, None, :] == beam  # [G, K, 1, K, R]
    mask = (mine & seen.view(sources, beams, extent, 1, room)).view(sources, 1, beams * extent, beams * room)
    q = q.view(sources, beams, heads, extent, width).transpose(1, 2).reshape(sources, heads, beams * extent, width)
    context, _ = mix(q, store.k.flatten(2, 3), store.v.flatten(2, 3), mask, dropout, False)
    return _rows(context, beams), None


def _rows(x: Tensor, beams: int) -> Tensor:
    """[G, H, K·T, D] → [G·K, H, T, D]."""
    sources, heads, _, width = x.shape
    return x.view(sources, heads, beams, -1, width).transpose(1, 2).flatten(0, 1)


def _segment_mask(keys: Tensor | None, queries: Layout | None) -> Tensor | None:
    """[B, 1, T or 1, S]: real keys, and of the query's own sentence where rows are packed."""
    if keys is None:
        return None
    if queries is None:
        return (keys > 0)[:, None, None]
    return ((keys[:, None] == queries.segments[:, :, None]) & queries.ok[:, :, None])[:, None]


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b


def store_dtype(like: Tensor) -> torch.dtype:
    """What keys and values will be computed in, by a layer whose weights are `like` this one."""
    return torch.get_autocast_dtype(like.device.type) if torch.is_autocast_enabled(like.device.type) else like.dtype


def ranks(tokens: Tensor, layout: Layout | None) -> Tensor:
    """[B, T]: a token's place among those fed in this call, for tokens [B, T, …]."""
    if layout is not None:
        return layout.positions
    return torch.arange(tokens.size(1), device=tokens.device).expand(tokens.size(0), tokens.size(1))
