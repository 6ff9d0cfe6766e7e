"""A convolution in place of self-attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Site
from weft.batch import Layout
from weft.errors import ConfigError
from weft.mixers.base import Mixer
from weft.state import State


class ConvolutionMixer(Mixer):
    """A gated convolution over `width` neighbours, v(A, B) = A ⊙ σ(B) (Gehring et al. 2017); in a decoder the last `width`.

    width: tokens seen at once, the middle one included; odd in an encoder
    """

    paper = "Gehring et al. 2017"
    cost = "n·width"
    uses = frozenset({"encoder", "causal"})
    reach = "pattern"
    packs = True

    def __init__(self, site: Site, *, width: PositiveInt = 3) -> None:
        super().__init__(site)
        if site.use == "encoder" and width % 2 == 0:
            raise ConfigError(f"a convolution in an encoder looks equally far both ways, so its width is odd, not {width}")
        self.width = width
        self.taps = nn.Linear(width * site.dim, 2 * site.dim)
        self.out = nn.Linear(site.dim, site.dim)

    def sees(self, length: int) -> Tensor:
        place = torch.arange(length)
        away = place[:, None] - place[None]
        return (away >= 0) & (away < self.width) if self.site.use == "causal" else away.abs() <= self.width // 2

    def start(self, *, rows: int = 1, room: int | None = None) -> State:
        if self.site.use == "encoder":
            return None
        return self.out.weight.new_zeros(rows, self.width - 1, self.site.dim)

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        if layout is not None:
            x = torch.where(layout.ok[..., None], x, 0.0)
        if self.site.use == "encoder":
            side = self.width // 2
            row, segments = F.pad(x, (0, 0, side, side)), self._segments(layout, side, side)
        else:
            row, segments = torch.cat([state.to(x.dtype), x], 1), self._segments(layout, self.width - 1, 0)
            state = self._tail(row, layout)
        windows = row.unfold(1, self.width, 1).transpose(2, 3)
        if segments is not None and layout is not None:
            same = segments.unfold(1, self.width, 1) == layout.segments[..., None]
            windows = torch.where(same[..., None], windows, 0.0)
        value, gate = self.taps(windows.flatten(2)).chunk(2, -1)
        return Attended(self.out(value * gate.sigmoid()), state)

    def _segments(self, layout: Layout | None, before: int, after: int) -> Tensor | None:
        """Segments of the padded row where sentences stand side by side; elsewhere zeros do the masking."""
        if layout is None or not layout.packed:
            return None
        return F.pad(layout.segments, (before, after))

    def _tail(self, row: Tensor, layout: Layout | None) -> Tensor:
        """The last width − 1 real tokens of each row."""
        keep = self.width - 1
        if layout is None:
            return row[:, row.size(1) - keep :]
        index = layout.lengths[:, None] + torch.arange(keep, device=row.device)
        return row.gather(1, index[..., None].expand(-1, -1, row.size(-1)))
