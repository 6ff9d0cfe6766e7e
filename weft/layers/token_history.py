"""All earlier tokens of a row by position, for causal layers that look back at every token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import Layout
from weft.layers.decoder_state import timed


@dataclass
class History:
    """tokens [B, S, D], of which the first `length` [B] of each row were fed: the index of a cell is its token's position.

    With `room` the store has a fixed size, which only the search loop grows, and is written in place; without it, each piece is
    appended.
    """

    length: Tensor
    tokens: Tensor = timed(1)
    room: bool = False

    @staticmethod
    def empty(rows: int, width: int, room: int | None, like: Tensor) -> History:
        length = torch.zeros(rows, dtype=torch.long, device=like.device)
        return History(length, like.new_zeros(rows, room or 0, width), room is not None)

    @property
    def fresh(self) -> bool:
        """Whether nothing was fed, as far as the host knows without synchronising."""
        return self.tokens.size(1) == 0

    def append(self, x: Tensor, layout: Layout | None) -> tuple[History, Tensor]:
        """Feeds x [B, T, D] and returns the positions [B, T] of its tokens. The next tokens overwrite cells of padding."""
        extent = x.size(1)
        place = self.length[:, None] + torch.arange(extent, device=x.device)
        length = self.length + (extent if layout is None else layout.lengths)
        if self.fresh:
            return History(length, x), place
        row = torch.arange(x.size(0), device=x.device)[:, None]
        if self.room:
            tokens = self.tokens.index_put_((row, place), x.to(self.tokens.dtype))
        else:
            tokens = F.pad(self.tokens, (0, 0, 0, extent)).index_put((row, place), x.to(self.tokens.dtype))
        return History(length, tokens, self.room), place
