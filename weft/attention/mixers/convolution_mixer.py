"""Gated convolutions in place of self-attention."""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Site
from weft.attention.mixers.base import Mixer
from weft.data.batch import Layout
from weft.layers.convolution import TokenWindow
from weft.layers.decoder_state import State


class ConvolutionMixer(Mixer):
    """A gated convolution over `width` tokens, v(A, B) = A ⊙ σ(B) (Gehring et al. 2017); in a decoder over the last `width`.

    width: tokens that the convolution covers, including the token itself; odd in an encoder
    """

    paper = "Gehring et al. 2017"
    cost = "n·width"
    uses = frozenset({"encoder", "causal"})
    reach = "pattern"
    packs = True

    def __init__(self, site: Site, *, width: PositiveInt = 3) -> None:
        super().__init__(site)
        self.window = TokenWindow(site.dim, width, causal=site.use == "causal")
        self.taps = nn.Linear(width * site.dim, 2 * site.dim)
        self.out = nn.Linear(site.dim, site.dim)

    def sees(self, length: int) -> Tensor:
        return self.window.sees(length)

    def start(self, *, rows: int = 1, room: int | None = None) -> State:
        return self.window.start(rows, self.out.weight)

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        windows, state = self.window(x, state, layout)
        return Attended(self.out(F.glu(self.taps(windows))), state)
