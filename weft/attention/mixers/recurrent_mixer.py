"""A recurrent layer in place of self-attention."""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Site
from weft.attention.mixers.base import Mixer
from weft.data.batch import Layout
from weft.layers.decoder_state import State
from weft.layers.recurrent import CellKind, RecurrentStack, StepDropout


class RecurrentMixer(Mixer):
    """A GRU or an LSTM: bidirectional in an encoder, with half the width per direction; left to right in a decoder.

    A whole sequence is one call of a fused kernel, and a step costs the same at any length.

    cell: gru, or lstm, which has a second state
    layers: number of stacked layers
    """

    paper = "Cho et al. 2014; Chen et al. 2018"
    cost = "n (in sequence)"
    uses = frozenset({"encoder", "causal"})

    def __init__(self, site: Site, *, cell: CellKind = "gru", layers: PositiveInt = 1) -> None:
        super().__init__(site)
        self.stack = RecurrentStack(cell, site.dim, site.dim, layers, StepDropout(), both=site.use == "encoder")
        self.out = nn.Linear(site.dim, site.dim)

    def start(self, *, rows: int = 1, room: int | None = None) -> State:
        return self.stack.start(rows)

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        outputs, state = self.stack(x, state, layout)
        return Attended(self.out(outputs), state)
