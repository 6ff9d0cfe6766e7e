"""Captioning: pictures to captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from weft.attention.core.recording import first_row, record
from weft.batch import BOS, EOS, Source
from weft.data.pictures import Pixels, read_picture
from weft.data.tokenizer import Tokenizer
from weft.inference.predictor import Part, Prediction, Predictor, refuse
from weft.inference.resolve import Resolved
from weft.models.base import Model
from weft.search.choosers import Limits
from weft.search.constraints import usual_constraints
from weft.search.loop import Control
from weft.search.tables import Hypothesis

POSITIONS = 64
"""What a picture takes of the budget of a batch, in tokens."""


@dataclass
class Caption(Prediction):
    """A caption. Its score is that of the search, such as the log-probability divided by lengthᵅ."""


@dataclass(frozen=True)
class PictureInput:
    """A picture to describe, by its path. attention: whether to add attention weights."""

    path: str
    attention: bool = False


@dataclass(eq=False)
class PicturePart(Part):
    """The pixels [3, S, S] of a picture."""

    pixels: Pixels = field(kw_only=True)

    @property
    def size(self) -> int:
        return POSITIONS

    @property
    def seed(self) -> int:
        """Names the picture to sampling. It depends only on its pixels, not on the batch."""
        return int.from_bytes(blake2b(self.pixels.tobytes(), digest_size=8).digest(), "little") >> 1


class CaptionPredictor(Predictor[PictureInput, Caption]):
    """A model with the tokenizer of captions and the side of its pictures."""

    forks = False

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        size: int,
        resolved: Resolved,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(model, resolved, warn)
        self.tokenizer, self.size = tokenizer, size
        resolved.search.watched(model.decoder)  # fails now if the search cannot work with this decoder
        if resolved.section.n_best > 1:
            resolved.search.check(["n_best"])

    def parse(self, line: str, *, attention: bool = False, **fields: Any) -> PictureInput:
        refuse(fields, "a picture has no such field; leave it out")
        return PictureInput(line, attention)

    def read(self, inputs: Sequence[PictureInput], first_line: int) -> list[list[PicturePart]]:
        return [
            [PicturePart([], pixels=read_picture(given.path.strip(), self.size))] if given.path.strip() else []
            for given in inputs
        ]

    def run(self, parts: list[PicturePart], control: Control | None = None) -> list[list[Caption]]:
        resolved, device, most = self.resolved, self.model.device, self.model.max_target
        section = resolved.section
        longest = max(1, min(section.max_length, section.max_length if most is None else most - 1))
        limits = [torch.full((len(parts),), each, device=device) for each in (longest, min(section.min_length, longest - 1))]
        seeds = torch.tensor([part.seed for part in parts], device=device)
        with resolved.arithmetic(next(self.model.parameters()).dtype, resolved.beams):
            found, _ = resolved.search.find(
                self.model.decoder,
                self.model.encode(self._source(parts)),
                limits=Limits(limits[0], limits[1], seeds),
                first=torch.full((len(parts), 1), BOS, device=device),
                best=resolved.candidates,
                constraints=usual_constraints(section.no_repeat_ngram, longest + 1),
                control=control,
            )
        return [[self._caption(each) for each in hypotheses] for hypotheses in found]

    def join(self, given: PictureInput, parts: list[PicturePart], results: list[list[Caption]]) -> Caption:
        if not results or not results[0]:
            return Caption("", 0.0)
        best, *rest = results[0]
        best.alternatives = rest
        if given.attention:
            self._add_attention(best, parts[0])
        return best

    def _source(self, parts: Sequence[PicturePart]) -> Source:
        return Source(torch.from_numpy(np.stack([part.pixels for part in parts])).to(self.model.device))

    def _caption(self, hypothesis: Hypothesis) -> Caption:
        ids = hypothesis.tokens
        text = self.tokenizer.decode([token for token in ids if token != EOS])
        return Caption(text, hypothesis.score, ids, self.tokenizer.tokens(ids))

    @torch.inference_mode()
    def _add_attention(self, caption: Caption, part: PicturePart) -> None:
        """Adds the weights of every layer that has any; those over the picture go row by row through its grid."""
        fed = torch.tensor([[BOS, *caption.ids[:-1]]], device=self.model.device)
        with record(self.model) as tape:
            encoded = self.model.encode(self._source([part]))
            self.model.decoder.features(fed, self.model.decoder.start(encoded))
        caption.attention, caption.uses = first_row(self.model, tape)
        side = int(encoded.memory.size(1) ** 0.5)
        caption.source_tokens = [f"{place // side + 1},{place % side + 1}" for place in range(encoded.memory.size(1))]
