"""Sequences of bit vectors: fills in the blanks at the end of each line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from weft.data.batch import Layout, Source
from weft.decoding.search_loop import Cancellation
from weft.errors import DataError
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import BatchItem, Prediction, Predictor, refuse
from weft.models.base import Network
from weft.tasks.bits.data import Frames, read_frames, write_target


@dataclass(frozen=True)
class Bits:
    """A sequence with blanks. attention: whether to add the weights of the heads of a Neural Turing Machine."""

    text: str
    attention: bool = False


@dataclass(eq=False)
class BitPart(BatchItem):
    """A sequence: its frames [S, F], of which the last `blanks` are blank."""

    frames: Frames
    blanks: int

    @property
    def size(self) -> int:
        return len(self.frames)


class BitsPredictor(Predictor[Bits, Prediction]):
    """A model that fills in blanks. `score` is the log-probability of all its bits. width: bits of a vector."""

    forks = False

    def __init__(self, model: Network, options: DecodingOptions, width: int, warn: Callable[[str], None] | None = None) -> None:
        super().__init__(model, options, warn)
        self.width = width

    def parse_input(self, line: str, *, attention: bool = False, **fields: Any) -> Bits:
        refuse(fields, "a sequence of bits has no such field; leave it out")
        return Bits(line, attention)

    def encode_input(self, inputs: Sequence[Bits], first_line: int) -> list[list[BatchItem]]:
        return [self._parts(given.text, line) for line, given in enumerate(inputs, start=first_line)]

    def _parts(self, text: str, line: int) -> list[BatchItem]:
        try:
            return [BitPart([], *read_frames(text, self.width))] if text.strip() else []
        except DataError as error:
            raise DataError(f"line {line}: {error}") from None

    def run(self, parts: list[BitPart], control: Cancellation | None = None) -> list[Prediction]:
        device, layout = self.model.device, Layout.padded([part.size for part in parts])
        frames = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(part.frames) for part in parts], batch_first=True)
        with self.options.arithmetic(next(self.model.parameters()).dtype):
            logits = self.model(Source(frames.to(device), layout.to(device))).float()
        results = []
        for row, part in zip(logits, parts, strict=True):
            written = row[part.size - part.blanks : part.size]
            results.append(Prediction(write_target((written > 0).tolist()), float(F.logsigmoid(written.abs()).sum())))
        return results

    def join_outputs(self, given: Bits, parts: list[BitPart], results: list[Prediction]) -> Prediction:
        """Weights are under "read" and "write": [heads, steps, slots]."""
        found = results[0] if results else Prediction("", 0.0)
        if given.attention and results:
            found.source_tokens = given.text.split()
            with torch.inference_mode():
                frames = torch.from_numpy(parts[0].frames)[None].to(self.model.device)
                heads = self.model.encoder(Source(frames)).extras.get("heads")
            if heads is not None:
                read, write = heads[0].float().transpose(0, 1).chunk(2)
                found.attention = {"read": read.cpu().numpy(), "write": write.cpu().numpy()}
        return found
