"""Captioning: pictures to captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from weft.data.batch import Source
from weft.data.tokenizers import Tokenizer
from weft.decoding.generate import generate
from weft.decoding.search_loop import Cancellation
from weft.inference.decoding_options import DecodingOptions
from weft.inference.predictor import BatchItem, Prediction, refuse
from weft.models.base import Model
from weft.tasks.captioning.data import Pixels, read_image
from weft.tasks.media_predictor import MediaPredictor

POSITIONS = 64
"""The share of a picture in the budget of a batch, in tokens."""


@dataclass(frozen=True)
class PictureInput:
    """A picture to describe, by its path. attention: whether to add attention weights."""

    path: str
    attention: bool = False


@dataclass(eq=False)
class PicturePart(BatchItem):
    """The pixels [3, S, S] of a picture."""

    pixels: Pixels = field(kw_only=True)

    @property
    def size(self) -> int:
        return POSITIONS

    @property
    def seed(self) -> int:
        """Names the picture to sampling. It depends only on its pixels, not on the batch."""
        return int.from_bytes(blake2b(self.pixels.tobytes(), digest_size=8).digest(), "little") >> 1


class CaptionPredictor(MediaPredictor[PictureInput]):
    """A model that describes pictures, which it reads with a side of `side` pixels."""

    forks = False

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        side: int,
        options: DecodingOptions,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, tokenizer, options, warn)
        self.side = side

    def parse_input(self, line: str, *, attention: bool = False, **fields: Any) -> PictureInput:
        refuse(fields, "a picture has no such field; leave it out")
        return PictureInput(line.strip(), attention)

    def encode_input(self, inputs: Sequence[PictureInput], first_line: int) -> list[list[PicturePart]]:
        return [[PicturePart([], pixels=read_image(given.path, self.side))] if given.path else [] for given in inputs]

    def run(self, parts: list[PicturePart], control: Cancellation | None = None) -> list[list[Prediction]]:
        request = replace(
            self.options.request([]),
            max_tokens=[self.options.config.max_length] * len(parts),
            seeds=[part.seed for part in parts],
            cancellation=control,
        )
        with self.options.arithmetic(next(self.model.parameters()).dtype, self.options.beams):
            results, _ = generate(self.model, self.model.encode(self._source(parts)), request)
        return [[self.write(each) for each in hypotheses] for hypotheses in results]

    def join_outputs(self, given: PictureInput, parts: list[Any], results: list[list[Prediction]]) -> Prediction:
        """Weights over the picture go row by row through its grid."""
        caption = super().join_outputs(given, parts, results)
        if given.attention and caption.ids:
            places = self.add_attention(caption, self._source(parts)).memory.size(1)
            side = int(places**0.5)
            caption.source_tokens = [f"{place // side + 1},{place % side + 1}" for place in range(places)]
        return caption

    def _source(self, parts: Sequence[PicturePart]) -> Source:
        return Source(torch.from_numpy(np.stack([part.pixels for part in parts])).to(self.model.device))
