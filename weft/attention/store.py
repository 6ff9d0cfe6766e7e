"""Keys and values of what was fed: as they come, in a store of fixed size, or once a source.

Shape letters: G sources · K beams · B = G·K rows · H heads · S keys · R room · D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.attention.ragged import Packing, packing
from weft.batch import Layout
from weft.state import shared


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


def store_dtype(like: Tensor) -> torch.dtype:
    """What keys and values will be computed in, by a layer whose weights are `like` this one."""
    return torch.get_autocast_dtype(like.device.type) if torch.is_autocast_enabled(like.device.type) else like.dtype


def ranks(tokens: Tensor, layout: Layout | None) -> Tensor:
    """[B, T]: a token's place among those fed in this call, for tokens [B, T, …]."""
    if layout is not None:
        return layout.positions
    return torch.arange(tokens.size(1), device=tokens.device).expand(tokens.size(0), tokens.size(1))
