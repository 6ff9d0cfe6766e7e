"""SpecAugment (Park et al. 2019): masks stretches of time and bands of frequencies, and changes tempo, pitch and level.

Each change follows from a key, such as the place of a batch in training, so a resumed run makes the same ones.

Shapes: T frames · M mel bands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt

from weft.data.batch import Layout, PairBatch, Source
from weft.tasks.base import Share
from weft.tasks.transcription.log_mel import Frames

MOST = 0.2
"""The largest share of the frames of a recording that one mask may cover."""


@dataclass(frozen=True)
class SpecAugment:
    """Random changes of recordings in training.

    time_masks: masks over time per recording (SpecAugment, Park et al. 2019)
    time_mask: frames of the longest such mask; at most a fifth of a recording
    frequency_masks: masks over frequencies per recording
    frequency_mask: bands of the largest such mask
    tempo: largest random change of speed in training; 0.1: ten per cent
    pitch: largest random change of all frequencies in training
    level: largest random change in training of the volume, and of the outermost bands against the middle one, in units of
        scaled bands
    """

    time_masks: NonNegativeInt = 0
    time_mask: NonNegativeInt = 20
    frequency_masks: NonNegativeInt = 0
    frequency_mask: NonNegativeInt = 8
    tempo: Share = 0.0
    pitch: Share = 0.0
    level: NonNegativeFloat = 0.0

    def __bool__(self) -> bool:
        masks = self.time_masks * self.time_mask + self.frequency_masks * self.frequency_mask
        return bool(masks or self.tempo or self.pitch or self.level)

    def batch(self, batch: PairBatch, key: Sequence[int], longest: int | None = None) -> PairBatch:
        """A batch (padded) with every recording changed. longest: the most frames of a changed recording."""
        layout = batch.source.layout
        assert layout is not None
        draw = np.random.default_rng(tuple(key))
        values = batch.source.values.numpy()
        rows = [self(row[:count], draw, longest) for row, count in zip(values, layout.counts, strict=True)]
        fresh = Layout.padded([len(row) for row in rows])
        block = torch.zeros(len(rows), fresh.segments.size(1), values.shape[2])
        for place, row in zip(block, rows, strict=True):
            place[: len(row)] = torch.from_numpy(row)
        return replace(batch, source=Source(block, fresh))

    def __call__(self, frames: Frames, draw: np.random.Generator, longest: int | None = None) -> Frames:
        """The changed frames [T′, M] of a recording; masks are 0, the mean of every band."""
        if self.tempo or self.pitch:
            slower, higher = 1 + draw.uniform(-1, 1, 2) * (self.tempo, self.pitch)
            frames = _stretched(frames, slower, higher, longest or 2 * len(frames))
        frames = frames.copy()
        count, bands = frames.shape
        if self.level:
            louder, brighter = self.level * draw.uniform(-1, 1, 2)
            frames += np.linspace(louder - brighter, louder + brighter, bands, dtype=np.float32)
        for _ in range(self.time_masks):
            begin, end = _span(count, min(self.time_mask, int(MOST * count)), draw)
            frames[begin:end] = 0
        for _ in range(self.frequency_masks):
            begin, end = _span(bands, min(self.frequency_mask, bands), draw)
            frames[:, begin:end] = 0
        return frames


def _stretched(frames: Frames, slower: float, higher: float, most: int) -> Frames:
    """Time multiplied by `slower`, up to `most` frames, and frequencies by `higher`, by linear interpolation."""
    count, bands = frames.shape
    wanted = max(1, min(round(count * slower), most))
    return _between(_between(frames, np.linspace(0, count - 1, wanted)).T, np.arange(bands) / higher).T


def _between(rows: Frames, places: NDArray[np.float64]) -> Frames:
    """The rows at fractional places; beyond the last, the last."""
    places = np.minimum(places, len(rows) - 1)
    below = np.floor(places).astype(np.int64)
    above = np.minimum(below + 1, len(rows) - 1)
    share = (places - below)[:, None].astype(np.float32)
    return rows[below] * (1 - share) + rows[above] * share


def _span(extent: int, most: int, draw: np.random.Generator) -> tuple[int, int]:
    """A random stretch of 0 to `most` places of `extent`."""
    width = int(draw.integers(0, most + 1))
    begin = int(draw.integers(0, extent - width + 1))
    return begin, begin + width
