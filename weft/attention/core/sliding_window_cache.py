"""The last few tokens, which are all that decoding with a window needs.

Shapes: B rows · H heads · N cells · T queries · D head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.attention.core.kv_cache import store_dtype
from weft.data.batch import Layout
from weft.layers.positions import token_positions


@dataclass
class SlidingWindowCache:
    """Keys and values of the last tokens, in order, newest last; tokens older than the window are dropped.

    k, v [B, H, N, D]: cells of earlier tokens, then the `new` cells of the last piece, of which the first `fed` [B] hold tokens
    (None: all). length [B]: tokens fed in total, in `pieces` calls. past: how many earlier tokens a query may attend to.
    """

    k: Tensor
    v: Tensor
    length: Tensor
    past: int
    new: int = 0
    fed: Tensor | None = None
    pieces: int = 0

    @staticmethod
    def empty(rows: int, heads: int, room: int, past: int, width: int, like: Tensor) -> SlidingWindowCache:
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
        return SlidingWindowCache(k, v, self.length + (extent if fed is None else fed), self.past, extent, fed, self.pieces + 1)

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
        """Weights over cells [B, H, T, N] → over positions [B, H, T, S]. For pictures only: it synchronises with the device."""
        position, real = self.cells()
        size = max(int(self.length.max()), 1)
        place = torch.where(real, position, 0)[:, None, None].expand_as(weights)
        spread = weights.new_zeros(*weights.shape[:-1], size)
        return spread.scatter_add(-1, place, weights * real[:, None, None])
