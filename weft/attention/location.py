"""Attention to places, chosen without looking at what stands there."""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor

from weft.attention.base import Site
from weft.attention.scores import LocationScore
from weft.attention.single import ScoredAttention
from weft.batch import Layout
from weft.errors import DataError
from weft.state import State


class LocationAttention(ScoredAttention):
    """e_j = (W s)_j for the source position j, α = softmax(e) over the source's own length; the context is Σ α_j h_j.

    max_length: places there are; no source may be longer
    """

    paper = "Luong et al. 2015"
    ignores_key_order = False

    def __init__(self, site: Site, *, max_length: PositiveInt = 512) -> None:
        super().__init__(site, LocationScore(site.dim, max_length))
        self.max_length: int = max_length

    def start(
        self, memory: Tensor | None = None, layout: Layout | None = None, *, rows: int = 1, room: int | None = None
    ) -> State:
        assert memory is not None
        longest = memory.size(1) if layout is None else layout.longest
        if longest > self.max_length:
            raise DataError(
                f"location attention has {self.max_length} places, and a source has {longest} tokens; "
                f"raise its max_length and train again, or shorten the source"
            )
        return super().start(memory, layout)
