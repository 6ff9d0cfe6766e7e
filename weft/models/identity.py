"""No encoder: a decoder that reads the vectors of a front."""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor, nn

from weft.batch import Layout
from weft.models.base import Encoded
from weft.models.composing import VectorEncoder


class IdentityEncoder(VectorEncoder):
    """No encoder: the vectors of the front, normalised, are the memory, as the annotations of Xu et al. 2015.

    dim: width of the vectors
    """

    packs = True
    replays = True
    compiles = True

    def __init__(self, *, dim: PositiveInt = 256) -> None:
        super().__init__()
        self.input_width = self.width = dim
        self.norm = nn.LayerNorm(dim)

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        return Encoded(self.norm(x), layout)
