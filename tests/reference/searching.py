"""Small models in float64 and searches over a few padded sources, for tests that compare them with loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.data.batch import BOS, Layout, Source
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.search_loop import SearchRequest
from weft.decoding.token_selection import LengthLimits
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model


def small_model(options: Mapping[str, Any], size: int, seed: int = 4) -> Model:
    """A model over `size` tokens whose weights are doubled, so that its texts differ."""
    torch.manual_seed(seed)
    model = build_model({"dim": 8, **options, "share_embeddings": "none"}, Sizes(size, size, shared=True))
    assert isinstance(model, Model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model.double().eval()


@dataclass(frozen=True)
class Sources:
    """Random sources of these lengths; texts have at most `longest` tokens."""

    size: int
    lengths: list[int]
    longest: int

    def tokens(self) -> Tensor:
        shape = (len(self.lengths), max(self.lengths))
        return torch.randint(4, self.size, shape, generator=torch.Generator().manual_seed(0))

    def one(self, row: int) -> Source:
        return Source(self.tokens()[row : row + 1, : self.lengths[row]])

    def find(
        self, method: Any, model: Model, rows: list[int], prefix: list[list[int]] | None, names: Tensor, **options: Any
    ) -> list[list[Hypothesis]]:
        """The texts of some of the sources, in one batch. names: the numbers of the rows, which seed random choices."""
        lengths = [self.lengths[row] for row in rows]
        limits = LengthLimits(*(torch.full((len(rows),), value) for value in (self.longest, 0)), names)
        first = [[BOS, *each] for each in (prefix or [[]] * len(rows))]
        block = torch.tensor([[*each, *[0] * (max(map(len, first)) - len(each))] for each in first])
        layout = None if len({*map(len, first)}) == 1 else Layout.padded([len(each) for each in first])
        with torch.inference_mode():
            encoded = model.encode(Source(self.tokens()[rows][:, : max(lengths)], Layout.padded(lengths)))
        found: list[list[Hypothesis]] = method.find(
            model.decoder, encoded, SearchRequest(prefix=block, prefix_layout=layout, limits=limits, **options)
        )[0]
        return found
