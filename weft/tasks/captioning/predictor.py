"""Captioning: pictures to texts. The caption of a picture does not depend on its batch.

Shapes: S side of a picture in pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from weft.data.batch import Source
from weft.data.tokenizers import Tokenizer
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.decoding.predictor import BatchItem, MediaInput, MediaPredictor, Prediction, seed_of
from weft.decoding.search_loop import Cancellation
from weft.explain.attention_heatmap import shaded_pictures
from weft.models.base import Model
from weft.tasks.captioning.data import Pixels, read_image

POSITIONS = 64
"""The share of a picture in the budget of a batch, in tokens."""


@dataclass(eq=False)
class PicturePart(BatchItem):
    """The pixels [3, S, S] of a picture."""

    pixels: Pixels = field(kw_only=True)


class CaptionPredictor(MediaPredictor):
    """A model that describes pictures, which it reads with a side of `side` pixels."""

    forks = False
    noun = "picture"

    def __init__(
        self, model: Model, tokenizer: Tokenizer, side: int, options: DecodingOptions, warn: Warn | None = None
    ) -> None:
        super().__init__(model, tokenizer, options, warn)
        self.side = side

    def encode_input(self, inputs: Sequence[MediaInput], first_line: int) -> list[list[PicturePart]]:
        paths = [each.path for each in inputs]
        return [[PicturePart([], length=POSITIONS, pixels=read_image(path, self.side))] if path else [] for path in paths]

    def run(self, parts: list[PicturePart], control: Cancellation | None = None) -> list[list[Prediction]]:
        request = replace(
            self.options.request([]),
            max_tokens=[self.options.config.max_length] * len(parts),
            seeds=[seed_of(part.pixels.tobytes()) for part in parts],
            cancellation=control,
        )
        with self.arithmetic():
            results, _ = self.run_search(self.model.encode(self._source(parts)), request)
        return [[self.write(each) for each in hypotheses] for hypotheses in results]

    def join_outputs(self, given: MediaInput, parts: list[Any], results: list[list[Prediction]]) -> Prediction:
        """Weights over the picture go row by row through its grid."""
        caption = super().join_outputs(given, parts, results)
        if given.attention and caption.ids:
            places = self.add_attention(caption, self._source(parts)).memory.size(1)
            side = int(places**0.5)
            caption.source_tokens = [f"{place // side + 1},{place % side + 1}" for place in range(places)]
        return caption

    def explanation(self, prediction: Prediction, text: str) -> str:
        """HTML with the picture, and for each token the picture with its attention."""
        return shaded_pictures(read_image(text.strip(), self.side), prediction)

    def _source(self, parts: Sequence[PicturePart]) -> Source:
        return Source(torch.from_numpy(np.stack([part.pixels for part in parts])).to(self.model.device))
