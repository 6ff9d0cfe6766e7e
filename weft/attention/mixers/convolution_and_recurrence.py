"""Gated convolutions, and recurrent layers, in place of self-attention."""

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Mixer, Site
from weft.data.batch import Layout
from weft.layers.convolution import TokenWindow, record_gated_convolution
from weft.layers.decoder_state import State
from weft.layers.recurrent import CellKind, RecurrentStack, StepDropout
from weft.layers.step_recorder import recording


class ConvolutionMixer(Mixer):
    """A gated convolution over `width` tokens, v(A, B) = A ⊙ σ(B) (Gehring et al. 2017); in a decoder over the last `width`.

    width: tokens that the convolution covers, including the token itself; odd in an encoder
    """

    paper = "Gehring et al. 2017"
    cost = "n·width"
    uses = frozenset({"encoder", "causal"})
    receptive_field = "pattern"
    supports_packing = True

    def __init__(self, site: Site, *, width: PositiveInt = 3) -> None:
        super().__init__(site)
        self.window = TokenWindow(site.dim, width, causal=site.use == "causal")
        self.taps = nn.Linear(width * site.dim, 2 * site.dim)
        self.out = nn.Linear(site.dim, site.dim)

    def sees(self, length: int) -> Tensor:
        return self.window.sees(length)

    def begin(self, rows: int, room: int | None) -> State:
        return self.window.init_state(rows, self.out.weight)

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        windows, state = self.window(x, state, layout)
        halves = self.taps(windows)
        gated = F.glu(halves)
        if recording():
            record_gated_convolution(x, windows, self.taps.weight, self.taps.bias, halves, gated, self.window.width)
        return Attended(self.out(gated), state)


class RecurrentMixer(Mixer):
    """A recurrent layer: bidirectional in an encoder, with half the width per direction; left to right in a decoder.

    A whole sequence is one call of a fused kernel, and a step costs the same at any length.

    cell: gru; lstm, which has a second state; rnn, plain; or sru, whose gates read only the input
    layers: number of stacked layers
    """

    paper = "Cho et al. 2014; Chen et al. 2018"
    cost = "n (in sequence)"
    uses = frozenset({"encoder", "causal"})

    def __init__(self, site: Site, *, cell: CellKind = "gru", layers: PositiveInt = 1) -> None:
        super().__init__(site)
        self.stack = RecurrentStack(cell, site.dim, site.dim, layers, StepDropout(), both=site.use == "encoder")
        self.out = nn.Linear(site.dim, site.dim)

    def init_state(self, *, rows: int = 1, room: int | None = None) -> State:
        return self.stack.init_state(rows)

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        outputs, state = self.stack(x, state, layout)
        return Attended(self.out(outputs), state)
