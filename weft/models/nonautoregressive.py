"""Non-autoregressive decoders, which write all target tokens at once, and the interface of their length predictors.

Shapes: G sources · K canvases per source · B rows · T target positions · S source positions · M width of the memory · D width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from weft.data.batch import Layout
from weft.layers.decoder_state import State, select
from weft.layers.kernels.cpp_plan import Maker, PlanBuilder, Register
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


IMPOSSIBLE = -100.0
"""The log-probability of a length that was not allowed; finite, so that a source has a text even if no other is left."""


class LengthRatio(LengthPredictor):
    """More blanks than the text can need: ⌈ratio · S⌉ + extra. The text ends at the first EOS.

    ratio: blanks per source position
    extra: further blanks
    """

    holds = "ended"

    def __init__(self, memory: int, dim: int, *, ratio: PositiveFloat = 1.5, extra: PositiveInt = 8) -> None:
        super().__init__()
        self.ratio, self.extra = ratio, extra

    def known(self, source: Encoded, lengths: Tensor, extent: int, fertilities: Tensor | None = None) -> TargetCanvas:
        blanks = (source.lengths * self.ratio).ceil().long() + self.extra
        return TargetCanvas(rows_of_lengths(blanks, int(-(-source.memory.size(1) * self.ratio // 1)) + self.extra))

    def longest_source(self, positions: int) -> int | None:
        return int((positions - self.extra) / self.ratio)


class LengthClassifier(LengthPredictor):
    """As many blanks as a head predicts, which classifies the difference T − S from the mean of the memory.

    offsets: the largest difference that is distinguished, in both directions
    reads: what blanks read: one embedding, or source positions, spread evenly
    weight: weight of the head's loss, which counts as one more token per sentence
    """

    several = True

    def __init__(
        self,
        memory: int,
        dim: int,
        *,
        offsets: PositiveInt = 32,
        reads: Literal["blank", "source"] = "blank",
        weight: NonNegativeFloat = 1.0,
    ) -> None:
        super().__init__()
        self.offsets, self.weight = offsets, weight
        self.head = nn.Linear(memory, 2 * offsets + 1)
        self.project = nn.Linear(memory, dim) if reads == "source" else None

    def logp(self, source: Encoded) -> Tensor:
        """[G, offsets]: log-probabilities of T − S = −offsets … offsets."""
        mask = source.mask
        mean = source.memory.where(mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
        return self.head(mean).float().log_softmax(-1)

    def loss(self, source: Encoded, lengths: Tensor, fertilities: Tensor | None = None) -> Tensor | None:
        offset = (lengths - source.lengths).clamp(-self.offsets, self.offsets) + self.offsets
        each = F.nll_loss(self.logp(source), offset, reduction="none")
        return self.weight * each.where(lengths > 0, 0.0).sum()

    def known(self, source: Encoded, lengths: Tensor, extent: int, fertilities: Tensor | None = None) -> TargetCanvas:
        layout = rows_of_lengths(lengths, extent)
        if self.project is None:
            return TargetCanvas(layout)
        sizes = source.lengths[:, None]
        origin = layout.positions * sizes // lengths[:, None].clamp_min(1)
        return TargetCanvas(layout, torch.minimum(origin, (sizes - 1).clamp_min(0)))

    def propose(self, source: Encoded, count: int, longest: Tensor, draw: HashedDraw) -> list[TargetCanvas]:
        lengths = source.lengths[:, None] + torch.arange(-self.offsets, self.offsets + 1, device=longest.device)
        allowed = (lengths >= 1) & (lengths <= longest[:, None])
        logp = self.logp(source).masked_fill(~allowed, float("-inf"))
        logp, order = logp.sort(dim=1, descending=True, stable=True)
        chosen = torch.minimum(lengths.gather(1, order[:, :count]), longest[:, None]).clamp_min(1)
        scores = logp[:, :count].clamp_min(IMPOSSIBLE)
        return [
            replace(self.known(source, length, int(length.max())), logp=score)
            for length, score in zip(chosen.unbind(1), scores.unbind(1), strict=True)
        ]

    def inputs(self, source: Encoded, canvas: TargetCanvas) -> Tensor | None:
        return None if self.project is None else _copied(self.project(source.memory), canvas)


class FertilityPredictor(LengthPredictor):
    """Each source position is copied as often as a head predicts, its fertility (Gu et al. 2018).

    most: the largest fertility that is predicted
    weight: weight of the head's loss, which counts per source position
    """

    several = True
    needs_fertilities = True

    def __init__(self, memory: int, dim: int, *, most: Annotated[int, Field(ge=1)] = 8, weight: NonNegativeFloat = 0.5) -> None:
        super().__init__()
        self.most, self.weight = most, weight
        self.head, self.project = nn.Linear(memory, most + 1), nn.Linear(memory, dim)

    def logp(self, source: Encoded) -> Tensor:
        """[G, S, most + 1]: log-probabilities of each position's fertility."""
        return self.head(source.memory).float().log_softmax(-1)

    def loss(self, source: Encoded, lengths: Tensor, fertilities: Tensor | None = None) -> Tensor | None:
        assert fertilities is not None
        each = F.nll_loss(self.logp(source).flatten(0, 1), fertilities.clamp_max(self.most).flatten(), reduction="none")
        return self.weight * each.where(source.mask.flatten(), 0.0).sum()

    def known(self, source: Encoded, lengths: Tensor, extent: int, fertilities: Tensor | None = None) -> TargetCanvas:
        assert fertilities is not None
        ends = fertilities.cumsum(1)
        layout = rows_of_lengths(ends[:, -1], extent)
        origin = torch.searchsorted(ends, layout.positions, right=True).clamp_max(fertilities.size(1) - 1)
        return TargetCanvas(layout, origin)

    def propose(self, source: Encoded, count: int, longest: Tensor, draw: HashedDraw) -> list[TargetCanvas]:
        logp = self.logp(source)
        cumulative = logp.exp().cumsum(-1)
        sizes = source.lengths
        real = torch.arange(logp.size(1), device=logp.device) < sizes[:, None]
        canvases = []
        for number in range(count):
            fertilities = logp.argmax(-1)
            if number:  # noisy parallel decoding
                drawn = draw(number, logp.size(1))[..., None] * cumulative[..., -1:]
                fertilities = (cumulative <= drawn).sum(-1).clamp_max(self.most)
            # No more tokens than allowed, and at least one.
            totals = torch.minimum(fertilities.where(real, 0).cumsum(1), longest[:, None])
            fertilities = totals.diff(dim=1, prepend=longest.new_zeros(len(longest), 1))
            fertilities[:, 0] += (fertilities.sum(1) == 0).long()
            lengths = fertilities.sum(1)
            canvases.append(self.known(source, lengths, int(lengths.max()), fertilities))
        return canvases

    def inputs(self, source: Encoded, canvas: TargetCanvas) -> Tensor | None:
        return _copied(self.project(source.memory), canvas)


class Upsampling(LengthPredictor):
    """`factor` positions for each source position, which hold a path of CTC (Libovický & Helcl 2018).

    factor: target positions per source position; with less than 2, many texts are too long for their path
    """

    holds = "path"
    alike = False

    def __init__(self, memory: int, dim: int, *, factor: PositiveInt = 2) -> None:
        super().__init__()
        self.memory, self.factor, self.project = memory, factor, nn.Linear(memory, factor * dim)

    def plan(self, draft: PlanBuilder, positions: Maker | None) -> Register:
        """Reads the memory, for the attentions to it as well."""
        draft.memory = draft.given(self.memory)
        return draft.spread(draft.linear(self.project, draft.memory), self.factor, positions)

    def known(self, source: Encoded, lengths: Tensor, extent: int, fertilities: Tensor | None = None) -> TargetCanvas:
        return TargetCanvas(rows_of_lengths(self.factor * source.lengths, self.factor * source.memory.size(1)))

    def inputs(self, source: Encoded, canvas: TargetCanvas) -> Tensor | None:
        rows, extent, _ = source.memory.shape
        return self.project(source.memory).view(rows, extent * self.factor, -1)

    def longest_source(self, positions: int) -> int | None:
        return positions // self.factor


def _copied(vectors: Tensor, canvas: TargetCanvas) -> Tensor:
    """The vector [B, S, D] that each position of a canvas copies, [B, T, D]."""
    assert canvas.origin is not None
    return vectors.gather(1, canvas.origin[..., None].expand(-1, -1, vectors.size(-1)))
