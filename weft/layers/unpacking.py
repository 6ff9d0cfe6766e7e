"""Unpacks the sentences of a packed row to padded rows and back, for layers that need one sentence per row.

Shapes: m segments (sentences, then padding) · N tokens of the packed row · T the longest sentence · D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.batch import Layout


def unpack(x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
    """x [1, N, D] → [m, T, D] with its layout, in which segments of padding are empty rows. The host knows all sizes."""
    assert layout.offsets is not None
    offsets = layout.offsets.long()
    place = torch.arange(layout.longest, device=x.device)
    where = (offsets[:-1, None] + place).clamp_max(x.size(1) - 1)
    ok = (place < offsets.diff()[:, None]) & layout.ok[0][where]
    return x[0][where], Layout(ok.to(torch.int32), place.expand_as(ok), None, layout.longest)


def repack(rows: Tensor, layout: Layout) -> Tensor:
    """[m, T, D] → [1, N, D], the inverse of `unpack`; values after the last sentence are undefined."""
    row = (layout.segments[0].long() - 1).clamp_min(0)
    return rows[row, layout.positions[0]][None]
