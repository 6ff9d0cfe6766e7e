"""Packs ragged rows for torch's fused recurrent layers, and unpacks the sentences of a packed row to padded rows.

Shapes: B rows · T positions · N tokens · m segments of a packed row (sentences, then padding) · W, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from weft.data.batch import Layout


@dataclass(frozen=True)
class TimeMajorPacking:
    """The order of the real tokens of ragged rows in a `PackedSequence`: step by step, and at each step the longest row first.

    index [N]: places in the block [B · T] · sizes, on the host: rows at each step · order, back [B]: rows by length, and the
    inverse · empty [B, 1]: rows without tokens, which get a token whose effect is undone; None if there are none.
    """

    index: Tensor
    sizes: Tensor
    order: Tensor
    back: Tensor
    empty: Tensor | None

    def pack(self, x: Tensor) -> PackedSequence:
        return PackedSequence(x.flatten(0, 1).index_select(0, self.index), self.sizes, self.order, self.back)

    def unpack(self, packed: PackedSequence, rows: int, extent: int) -> Tensor:
        """[rows, extent, W], 0 where there is no token."""
        block = packed.data.new_zeros(rows * extent, packed.data.size(-1))
        return block.index_copy(0, self.index, packed.data).view(rows, extent, -1)


def pack_rows(layout: Layout) -> TimeMajorPacking | None:
    """How to pack the rows of a padded batch; None if every row is full. Computed on the host without synchronising."""
    device, extent = layout.segments.device, layout.segments.size(1)
    counts = np.array(layout.counts, dtype=np.int64)
    if extent == 0 or counts.min() == extent:
        return None
    lengths = np.maximum(counts, 1)
    order = np.argsort(-lengths, kind="stable")
    time = np.arange(lengths.max())[:, None]
    alive = time < lengths[order]
    places = (order * extent + time)[alive]
    empty = _send((counts == 0)[:, None], device) if counts.min() == 0 else None
    sizes = torch.from_numpy(alive.sum(1))
    return TimeMajorPacking(_send(places, device), sizes, _send(order, device), _send(np.argsort(order), device), empty)


def _send(array: NDArray[np.int64] | NDArray[np.bool_], device: torch.device) -> Tensor:
    """The array on the device, through pinned memory so that the host does not wait."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


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
