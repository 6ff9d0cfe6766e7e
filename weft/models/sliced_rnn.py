"""Sliced recurrent networks, which read the slices of a text side by side (Yu & Liu 2018).

Shapes: B rows · S source positions · n slices of each level · D width.
"""

from collections.abc import Iterable
from typing import Annotated, Literal, cast

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.data.batch import Layout
from weft.layers.recurrent import Recurrence, RecurrentOptions, make_layer
from weft.models.base import Encoded
from weft.models.encoder_decoder import VectorEncoder


class SlicedRecurrentEncoder(VectorEncoder):
    """A text in n^k slices, which a recurrent layer reads at the same time; a layer above reads the last states of n slices.

    After k such layers, the last state of the highest stands for the text. The longest chain of steps is ⌈S / n^k⌉ + k·n
    instead of S. Each text is cut by its own length; if it cannot be divided evenly, the last slices are shorter, or missing.

    dim: width of the states, both directions together
    slices: n
    depth: k, the layers above the lowest; 0: a plain recurrent layer
    bidirectional: every layer reads in both directions; not so in the paper
    memory: last: the last state of the highest layer alone, as published; all: all its states, for a decoder with attention
    """

    cuda_graph_safe = True
    aligned = False

    def __init__(
        self,
        *,
        recurrence: RecurrentOptions,
        dim: PositiveInt = 256,
        slices: Annotated[int, Field(ge=2)] = 4,
        depth: NonNegativeInt = 2,
        bidirectional: bool = False,
        memory: Literal["last", "all"] = "last",
    ) -> None:
        super().__init__()
        self.input_width, self.width, self.finals = recurrence.embedding or dim, dim, recurrence.finals(dim, 1)
        self.slices, self.memory, self.noise = slices, memory, recurrence.noise()
        widths = [self.input_width, *[dim] * depth]
        self.layers = nn.ModuleList(make_layer(recurrence.cell, width, dim, both=bidirectional) for width in widths)

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        rows = x.size(0)
        if layout is None:
            layout = Layout.padded([x.size(1)] * rows).to(x.device)
        x, layout = cut(self.noise(x), layout, self.slices ** (len(self.layers) - 1))
        lowest, *above = cast(Iterable[Recurrence], self.layers)
        outputs, final = lowest(x, lowest.init_state(x.size(0)), layout)
        for layer in above:
            x, layout = self.noise(final[0]).unflatten(0, (-1, self.slices)), joined(layout, self.slices)
            outputs, final = layer(x, layer.init_state(x.size(0)), layout)
        if self.memory == "all":
            return Encoded(outputs, layout, final=[final])
        segments = layout.mask.any(1, keepdim=True).to(torch.int32)
        known = None if layout.known is None else tuple(min(count, 1) for count in layout.known)
        return Encoded(final[0][:, None], Layout(segments, torch.zeros_like(segments).long(), None, 1, known), final=[final])


def cut(x: Tensor, layout: Layout, count: int) -> tuple[Tensor, Layout]:
    """x [B, S, D] → [B · count, L, D], where each row of S' tokens has slices of ⌈S' / count⌉, and their layout."""
    if count == 1:
        return x, layout
    extent = -(-x.size(1) // count)
    lengths = layout.lengths[:, None, None]
    size = (lengths + count - 1) // count
    place = torch.arange(extent, device=x.device)
    where = torch.arange(count, device=x.device)[:, None] * size + place  # [B, count, L]
    real = (place < size) & (where < lengths)
    index = where.clamp_max(x.size(1) - 1).flatten(1)
    known = None
    if layout.known is not None:
        pairs = ((whole, -(-whole // count)) for whole in layout.known)
        known = tuple(max(0, min(size, whole - number * size)) for whole, size in pairs for number in range(count))
    positions = place.expand(real.size(0) * count, -1).contiguous()
    cuts = x.gather(1, index[..., None].expand(-1, -1, x.size(2))).view(-1, extent, x.size(2))
    return cuts, Layout(real.flatten(0, 1).to(torch.int32), positions, None, extent, known)


def joined(layout: Layout, count: int) -> Layout:
    """The layout of the states of `count` slices each, of which those with tokens come first."""
    real = layout.mask.any(1).view(-1, count)
    known = None
    if layout.known is not None:
        full = [length > 0 for length in layout.known]
        known = tuple(sum(full[begin : begin + count]) for begin in range(0, len(full), count))
    positions = torch.arange(count, device=real.device).expand_as(real).contiguous()
    return Layout(real.to(torch.int32), positions, None, count, known)
