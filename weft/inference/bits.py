"""Sequences of bit vectors: fills in the blanks at the end of each line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from weft.batch import Layout, Source
from weft.data.bits import Frames, read_frames, write_target
from weft.inference.predictor import Part, Prediction, Predictor
from weft.inference.resolve import Resolved
from weft.models.base import Network
from weft.search.loop import Control


@dataclass(eq=False)
class BitPart(Part):
    """A sequence: its frames [S, F], of which the last `blanks` are blank."""

    frames: Frames
    blanks: int

    @property
    def size(self) -> int:
        return len(self.frames)


class BitsPredictor(Predictor[str, Prediction]):
    """A model that fills in blanks. `score` is the log-probability of all its bits. width: bits of a vector."""

    forks = False

    def __init__(self, model: Network, resolved: Resolved, width: int, warn: Callable[[str], None] | None = None) -> None:
        super().__init__(model, resolved, warn)
        self.width = width

    def read(self, inputs: Sequence[str], first_line: int) -> list[list[Part]]:
        return [[BitPart([], *read_frames(line, self.width))] if line.strip() else [] for line in inputs]

    def run(self, parts: list[BitPart], control: Control | None = None) -> list[Prediction]:
        device, layout = self.model.device, Layout.padded([part.size for part in parts])
        frames = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(part.frames) for part in parts], batch_first=True)
        with self.resolved.arithmetic(next(self.model.parameters()).dtype):
            logits = self.model(Source(frames.to(device), layout.to(device))).float()
        results = []
        for row, part in zip(logits, parts, strict=True):
            written = row[part.size - part.blanks : part.size]
            results.append(Prediction(write_target((written > 0).tolist()), float(F.logsigmoid(written.abs()).sum())))
        return results

    def join(self, given: str, parts: list[BitPart], results: list[Prediction]) -> Prediction:
        return results[0] if results else Prediction("", 0.0)
