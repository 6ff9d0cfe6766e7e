"""Non-autoregressive decoders, which write all target tokens at once, and the interface of their length predictors.

Shapes: G sources · K canvases per source · B rows · T target positions · S source positions · M width of the memory · D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.data.batch import Layout
from weft.layers.decoder_state import State, select
from weft.models.base import Encoded, LinearDecoder

Holds = Literal["text", "ended", "path"]
"""Contents of a canvas: a text; a text, its end and anything behind it; a path of CTC."""


HashedDraw = Callable[[int, int], Tensor]
"""(number of the draw, places) → [G, places]: uniform random numbers of a search that do not depend on the batch."""


@dataclass(frozen=True)
class TargetCanvas:
    """The positions of some targets.

    origin [B, T]: the source position that each of them copies, if they copy any · logp [B]: of their number, if predicted.
    """

    layout: Layout
    origin: Tensor | None = None
    logp: Tensor | None = None


class LengthPredictor(nn.Module, ABC):
    """Decides the canvas of a source. holds: see `Holds` · several: whether it can propose more than one canvas · alike: blanks
    at different positions may read the same, so that the decoder has to add positions.

    Fertilities [B, S], how many target tokens each source token stands for, are given in training to kinds that need them.
    """

    holds: Holds = "text"
    several: bool = False
    alike: bool = True
    needs_fertilities: bool = False

    @abstractmethod
    def known(self, source: Encoded, lengths: Tensor, extent: int, fertilities: Tensor | None = None) -> TargetCanvas:
        """The canvas of targets with `lengths` [B] tokens, in rows of `extent` tokens."""

    def loss(self, source: Encoded, lengths: Tensor, fertilities: Tensor | None = None) -> Tensor | None:
        """The loss of its own head, summed over rows; None if it has no head."""
        return None

    def propose(self, source: Encoded, count: int, longest: Tensor, draw: HashedDraw) -> list[TargetCanvas]:
        """Up to `count` canvases per source, the most probable first, each for all sources; `longest` [G]: most tokens."""
        return [self.known(source, longest, 0)]

    def inputs(self, source: Encoded, canvas: TargetCanvas) -> Tensor | None:
        """[B, T, D]: the inputs of blanks, instead of the blank's own embedding."""
        return None

    def longest_source(self, positions: int) -> int | None:
        """The longest source whose canvas has at most this many positions; None if the text decides its length."""
        return None


def rows_of_lengths(lengths: Tensor, extent: int) -> Layout:
    """Padded rows whose lengths only the device knows."""
    place = torch.arange(extent, device=lengths.device).expand(lengths.numel(), extent)
    return Layout((place < lengths[:, None]).to(torch.int32), place.contiguous(), None, extent)


def chosen_rows(source: Encoded, rows: Tensor) -> Encoded:
    """The sources with these numbers."""
    layout = None if source.layout is None else source.layout.select(rows)
    layers, final = [each[rows] for each in source.layers], select(source.final, rows)
    return replace(source, memory=source.memory[rows], layout=layout, layers=layers, final=final, extras={})


def joined(canvases: Sequence[TargetCanvas], multiple: int = 1) -> TargetCanvas:
    """The rows of several canvases, one canvas after the other, in rows of equal length, a multiple of `multiple`."""
    extent = -(-max(each.layout.segments.size(1) for each in canvases) // multiple) * multiple
    if len(canvases) == 1 and extent == canvases[0].layout.segments.size(1):
        return canvases[0]
    layout = rows_of_lengths(torch.cat([each.layout.lengths for each in canvases]), extent)
    origins = [F.pad(each.origin, (0, extent - each.origin.size(1))) for each in canvases if each.origin is not None]
    scores = [each.logp for each in canvases if each.logp is not None]
    return TargetCanvas(layout, torch.cat(origins) if origins else None, torch.cat(scores) if scores else None)


class NonAutoregressiveDecoder(LinearDecoder):
    """A decoder whose positions all see each other. A position that is not written yet holds `blank`, the last token id.

    The blank is also the blank of CTC. `open` prepares a canvas; `hidden_states` reads tokens and blanks at all its positions.
    """

    parallel = True
    canvases: LengthPredictor
    blank: int

    @abstractmethod
    def open(self, source: Encoded, canvas: TargetCanvas) -> State:
        """The state from which any number of passes over this canvas start."""

    @abstractmethod
    def embed(self, tokens: Tensor, state: State, layout: Layout | None = None) -> Tensor:
        """[B, T, D]: the input of the layers, from tokens and blanks."""
