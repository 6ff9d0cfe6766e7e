"""KV caches: concatenated keys and values, a cache of fixed size, a sliding window, and the memory of cross-attention.

Shapes: G sources · K beams · B = G·K rows · H heads · S keys · R room · N cells · T queries · D head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.attention.core.packed_sequences import RaggedPacking, packing
from weft.data.batch import Layout
from weft.layers.decoder_state import CachesDerived, common, shared
from weft.layers.embeddings_and_rotary_positions import token_positions
from weft.layers.kernels.cpp import steps, used
from weft.layers.kernels.cpp_plan import Keys
from weft.layers.linear_norm_dropout import to_autocast_dtype

UNFUSED = frozenset({"cpu"})
"""Devices on which masks are usually not passed to fused kernels."""


@dataclass
class ConcatenatedKeyValues:
    """Keys and values of whole sequences; those of later calls are concatenated.

    k, v [B, H, S, D] · segments, positions [B, S], None while all tokens are real and in order.
    """

    k: Tensor | None = None
    v: Tensor | None = None
    segments: Tensor | None = None
    positions: Tensor | None = None

    def place(self, query: Tensor, layout: Layout | None) -> Tensor:
        """The positions [B, T] of the tokens to be appended (`query` only gives their number)."""
        rank = token_positions(query, layout)
        if self.k is None:
            return rank
        if self.segments is None:
            return rank + self.k.size(2)
        return rank + (self.segments > 0).sum(1, keepdim=True)

    def append(self, k: Tensor, v: Tensor, layout: Layout | None) -> ConcatenatedKeyValues:
        if self.k is None or self.v is None:
            return ConcatenatedKeyValues(k, v, *((None, None) if layout is None else (layout.segments, layout.positions)))
        positions = torch.cat([self.key_positions(), self.place(k[:, 0], layout)], 1)
        segments = None
        if self.segments is not None or layout is not None:
            new = torch.ones_like(k[:, 0, :, 0], dtype=torch.int32) if layout is None else layout.segments
            old = torch.ones_like(self.k[:, 0, :, 0], dtype=torch.int32) if self.segments is None else self.segments
            segments = torch.cat([old, new], 1)
        return ConcatenatedKeyValues(torch.cat([self.k, k], 2), torch.cat([self.v, v], 2), segments, positions)

    def key_positions(self) -> Tensor:
        """[B, S]."""
        if self.positions is not None:
            return self.positions
        assert self.k is not None
        return token_positions(self.k[:, 0], None)


@dataclass
class CacheAppend:
    """The source [G, 1, 1, 1], beam [K, 1], cell [G, 1, 1, T] and positions [B, T] of new tokens, and the index after them."""

    source: Tensor
    beam: Tensor
    place: Tensor
    positions: Tensor
    after: CacheIndex


@dataclass
class CacheIndex(CachesDerived):
    """The tokens and beams that the cells of a cache belong to. It is the same in all layers, so they share one.

    ancestry [G, K, R] int16: the beam whose cell holds token s of beam b, so that beams are reordered without copying.
    Appending writes it in place: the indices before and after share it and differ in length.
    length [G]: tokens stored (the beams of a source have equally many).
    """

    ancestry: Tensor
    length: Tensor

    @staticmethod
    def empty(rows: int, room: int, device: torch.device) -> CacheIndex:
        ancestry = torch.zeros(rows, 1, room, dtype=torch.int16, device=device)
        return CacheIndex(ancestry, torch.zeros(rows, dtype=torch.long, device=device))

    def plan(self, extent: int, layout: Layout | None) -> CacheAppend:
        """Reserves cells for the next `extent` tokens per row, once for all layers."""

        def make() -> CacheAppend:
            sources, beams, _ = self.ancestry.shape
            rank = torch.arange(extent, device=self.length.device)
            place = self.length[:, None, None] + rank
            order = rank if layout is None else layout.positions.view(sources, beams, extent)
            positions = (self.length[:, None, None] + order).expand(sources, beams, extent).reshape(-1, extent)
            beam = torch.arange(beams, device=place.device)[:, None]
            own = beam.to(torch.int16).expand(sources, beams, extent)
            self.ancestry.scatter_(2, place.expand(sources, beams, extent), own)
            fed = extent if layout is None else layout.mask.view(sources, beams, extent)[:, 0].sum(-1)
            source = torch.arange(sources, device=place.device)[:, None, None, None]
            return CacheAppend(source, beam, place[:, None], positions, CacheIndex(self.ancestry, self.length + fed))

        return self.cached(("plan", extent, id(layout)), make, layout)

    def reorder(self, rows: Tensor) -> CacheIndex:
        """Row i becomes what row `rows[i]` was, inside each source."""

        def make() -> CacheIndex:
            sources, beams, room = self.ancestry.shape
            parent = (rows.view(sources, beams) % beams)[..., None].expand(sources, beams, room)
            return CacheIndex(self.ancestry.gather(1, parent), self.length)

        return self.cached(("reorder", id(rows)), make, rows)

    def widen(self, beams: int) -> CacheIndex:
        """Gives every source `beams` beams instead of one."""
        ancestry = self.ancestry
        return self.cached(("widen", beams), lambda: CacheIndex(ancestry.expand(-1, beams, -1).contiguous(), self.length))

    def own(self, beams: int, groups: Tensor | None) -> CacheIndex:
        """Keeps the sources `groups` (None: all), and lets every beam own its cells."""

        def make() -> CacheIndex:
            length = self.length if groups is None else self.length.index_select(0, groups)
            own = torch.arange(beams, device=length.device, dtype=torch.int16)[:, None]
            return CacheIndex(own.expand(length.numel(), beams, self.ancestry.size(2)).contiguous(), length)

        return self.cached(("own", beams, id(groups)), make, groups)

    def grow(self, room: int) -> CacheIndex:
        more = room - self.ancestry.size(2)
        return self.cached(("grow", room), lambda: CacheIndex(F.pad(self.ancestry, (0, more)), self.length))


@dataclass
class KeyValueCache:
    """Keys and values in a store of fixed size, written once and never moved.

    k, v [G, H, K, R, D]: beam b of source g wrote cell (g, b, s) as its token number s.
    index: which cells each beam reads.
    owned: with more than `max_shared` beams, cells are copied instead and every beam owns its row.
    """

    k: Tensor
    v: Tensor
    index: CacheIndex = common()
    owned: bool = False
    max_shared: ClassVar[int] = 8

    @staticmethod
    def empty(rows: int, heads: int, room: int, width: int, like: Tensor) -> KeyValueCache:
        k = torch.zeros(rows, heads, 1, room, width, dtype=store_dtype(like), device=like.device)
        return KeyValueCache(k, torch.zeros_like(k), CacheIndex.empty(rows, room, like.device))

    def place(self, query: Tensor, layout: Layout | None) -> Tensor:
        """The positions [B, T] of the tokens to be appended."""
        return self.index.plan(query.size(1), layout).positions

    def append(self, k: Tensor, v: Tensor, layout: Layout | None) -> KeyValueCache:
        """Writes k, v [B, H, T, D]. Cells of padding lie beyond the length, and the next tokens overwrite them."""
        sources, heads, beams, _, width = self.k.shape
        plan = self.index.plan(k.size(2), layout)
        cpp = used(k)
        if cpp is not None and k.size(2) == 1 and steps(k, self.k) and steps(v, self.v):
            cpp.append(k, v, self.k, self.v, self.index.length)
            return replace(self, index=plan.after)
        head = plan.after.cached(("heads", heads), lambda: torch.arange(heads, device=k.device)[:, None, None])
        for store, new in ((self.k, k), (self.v, v)):
            cells = new.reshape(sources, beams, heads, -1, width).transpose(1, 2)
            # Indexing all four axes tells a compiler that nothing else in the store changes.
            store.index_put_((plan.source, head, plan.beam, plan.place), cells.to(store.dtype))
        return replace(self, index=plan.after)

    def key_positions(self) -> Tensor:
        """[1, R]: the index of a cell is the position of its token."""
        return torch.arange(self.k.size(3), device=self.k.device)[None]

    def select(self, rows: Tensor, groups: Tensor | None) -> KeyValueCache:
        sources, heads, beams, room, width = self.k.shape
        if groups is None and rows.numel() == sources * beams and not self.owned:
            return replace(self, index=self.index.reorder(rows))
        count = rows.numel() // (sources if groups is None else groups.numel())
        if groups is None and beams == 1 and count <= self.max_shared:
            k, v = (F.pad(store, (0, 0, 0, 0, 0, count - 1)) for store in (self.k, self.v))
            return replace(self, k=k, v=v, index=self.index.widen(count))
        shape = -1, count, heads, room, width
        k, v = (dense.index_select(0, rows).view(shape).transpose(1, 2).contiguous() for dense in self.dense())
        return KeyValueCache(k, v, self.index.own(count, groups), owned=count > self.max_shared)

    def grow(self, room: int) -> KeyValueCache:
        more = room - self.k.size(3)
        if more <= 0:
            return self
        k, v = (F.pad(store, (0, 0, 0, more)) for store in (self.k, self.v))
        return replace(self, k=k, v=v, index=self.index.grow(room))

    def dense(self) -> tuple[Tensor, Tensor]:
        """k, v [B, H, R, D] as each beam sees them."""
        sources, heads, beams, room, width = self.k.shape
        if self.owned or beams == 1:
            return self.k.transpose(1, 2).flatten(0, 1), self.v.transpose(1, 2).flatten(0, 1)
        cell = self.index.ancestry.long()[:, None, :, :, None].expand(sources, heads, beams, room, width)
        k, v = (store.gather(2, cell).transpose(1, 2).flatten(0, 1) for store in (self.k, self.v))
        return k, v


@dataclass
class CrossAttentionMemory:
    """Keys and values of a source, stored once for all its beams. k, v [G, H, S, D] · segments [G, S] or None.

    packing: where the sentences of a packed row are · joint [1, S, 2·H·D]: the product of which k and v are the halves · bias
      [G, 1, 1, S]: 0 for real keys and −inf for others, as fused kernels expect.
    """

    k: Tensor = shared()
    v: Tensor = shared()
    segments: Tensor | None = shared(default=None)
    packing: RaggedPacking | None = shared(default=None)
    bias: Tensor | None = shared(default=None)
    joint: Tensor | None = shared(default=None)

    @staticmethod
    def of(k: Tensor, v: Tensor, layout: Layout | None, joint: Tensor | None = None) -> CrossAttentionMemory:
        if k.device.type in UNFUSED:
            # Otherwise every step would copy them to make them contiguous or to convert them.
            k, v = to_autocast_dtype(k).contiguous(), to_autocast_dtype(v).contiguous()
        if layout is None:
            return CrossAttentionMemory(k, v)
        bias = None
        # Without a fused kernel, an empty source needs a mask; if no source is empty, adding a bias is faster.
        if not layout.packed and (k.device.type not in UNFUSED or min(layout.known or (0,)) > 0):
            bias = layout.cached(("bias", k.dtype), lambda: additive(layout.mask, k.dtype)[:, None, None])
        return CrossAttentionMemory(k, v, layout.segments, packing(layout), bias, joint if layout.packed else None)

    def planned(self) -> Keys:
        """For a native search."""
        if self.bias is not None:
            return Keys(self.k, self.v, self.bias)
        return Keys.masked(self.k, self.v, None if self.segments is None else self.segments > 0)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as an additive bias: 0 where it allows, −inf elsewhere."""
    return torch.where(mask, 0.0, float("-inf")).to(dtype)


def store_dtype(like: Tensor) -> torch.dtype:
    """The precision of keys and values computed by a layer with weights like this one."""
    return torch.get_autocast_dtype(like.device.type) if torch.is_autocast_enabled(like.device.type) else like.dtype


@dataclass
class SlidingWindowCache:
    """Keys and values of the last tokens, in order, newest last; tokens older than the window are dropped.

    k, v [B, H, N, D]: cells of earlier tokens, then the `new` cells of the last call, of which the first `fed` [B] hold tokens
    (None: all). length [B]: tokens fed in total, in `calls` calls. past: how many earlier tokens a query may attend to.
    """

    k: Tensor
    v: Tensor
    length: Tensor
    past: int
    new: int = 0
    fed: Tensor | None = None
    calls: int = 0

    @staticmethod
    def empty(rows: int, heads: int, room: int, width: int, past: int, like: Tensor) -> SlidingWindowCache:
        k = torch.zeros(rows, heads, min(room, past), width, dtype=store_dtype(like), device=like.device)
        return SlidingWindowCache(k, torch.zeros_like(k), torch.zeros(rows, dtype=torch.long, device=like.device), past)

    def place(self, query: Tensor, layout: Layout | None) -> Tensor:
        """The positions [B, T] of the tokens to be appended (`query` only gives their number)."""
        return token_positions(query, layout) + self.length[:, None]

    def append(self, k: Tensor, v: Tensor, layout: Layout | None) -> SlidingWindowCache:
        """Keeps the last `past` tokens and appends k, v [B, H, T, D]."""
        k, v = (torch.cat([self._last(store), new.to(store.dtype)], 2) for store, new in ((self.k, k), (self.v, v)))
        extent = k.size(2) - self.k.size(2) + self.new
        fed = None if layout is None else layout.lengths
        return SlidingWindowCache(k, v, self.length + (extent if fed is None else fed), self.past, extent, fed, self.calls + 1)

    def _last(self, cells: Tensor) -> Tensor:
        """[B, H, N − new, D]: the cells that end with the last token."""
        if self.fed is None:
            return cells[:, :, self.new :]
        rows, heads, count, width = cells.shape
        cell = self.fed[:, None] + torch.arange(count - self.new, device=cells.device)
        return cells.gather(2, cell[:, None, :, None].expand(rows, heads, -1, width))

    def cells(self) -> tuple[Tensor, Tensor]:
        """[B, N]: the position of each cell's token, and whether the cell holds one."""
        fed = self.new if self.fed is None else self.fed
        first = self.length - fed - (self.k.size(2) - self.new)
        position = first[:, None] + torch.arange(self.k.size(2), device=self.k.device)
        return position, (position >= 0) & (position < self.length[:, None])

    def grow(self, room: int) -> SlidingWindowCache:
        more = min(room, self.past) - (self.k.size(2) - self.new)
        if more <= 0:
            return self
        return replace(self, k=F.pad(self.k, (0, 0, more, 0)), v=F.pad(self.v, (0, 0, more, 0)))

    def spread(self, weights: Tensor) -> Tensor:
        """Weights over cells [B, H, T, N] → over positions [B, H, T, S]. For display only: it synchronises with the device."""
        position, real = self.cells()
        size = max(int(self.length.max()), 1)
        place = torch.where(real, position, 0)[:, None, None].expand_as(weights)
        spread = weights.new_zeros(*weights.shape[:-1], size)
        return spread.scatter_add(-1, place, weights * real[:, None, None])
