"""Multilayer perceptrons over positions in place of self-attention: gMLP and MLP-Mixer."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.attention.base import RowMixer, Site
from weft.data.batch import Layout
from weft.layers.decoder_state import History, State
from weft.layers.step_recorder import record, recording

CELLS = "row token channel"


class GatedMlpMixer(RowMixer):
    """s(Z) = u ⊙ (W v + b), [u; v] = gelu(U x): one learned matrix over positions computes the gate (Liu et al. 2021).

    W starts near 0 and b at 1, so that a block starts as a position-wise network. In a decoder W is triangular, and the state
    holds v of all earlier tokens.

    hidden: width of u and of v; 0: the model's width
    max_length: number of positions of W
    """

    paper = "Liu et al. 2021"
    cost = "n²"
    uses = frozenset({"encoder", "causal"})

    def __init__(self, site: Site, *, hidden: NonNegativeInt = 0, max_length: PositiveInt = 1024) -> None:
        super().__init__(site)
        self.max_length = max_length
        width = hidden or site.dim
        self.up = nn.Linear(site.dim, 2 * width)
        self.norm = nn.LayerNorm(width)
        self.weight = nn.Parameter(torch.empty(max_length, max_length))
        self.bias = nn.Parameter(torch.ones(max_length))
        self.down = nn.Linear(width, site.dim)
        nn.init.normal_(self.weight, std=1e-3 / max_length**0.5)

    def begin(self, rows: int, room: int | None) -> State:
        return History.empty(rows, self.down.in_features, room, self.down.weight)

    def mix(self, x: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        before = self.up(x)
        u, v = F.gelu(before).chunk(2, -1)
        if recording():
            for name, value, given in zip(("u", "v"), (u, v), before.chunk(2, -1), strict=True):
                record(name, value, CELLS, "gelu(x)", x=(given, CELLS))
        v = self.norm(v)
        if layout is not None:
            v = torch.where(layout.mask[..., None], v, 0.0)
        if state is None or state.fresh:
            extent = x.size(1)
            weight, bias = self.weight[:extent, :extent], self.bias[:extent, None]
            weight = weight if state is None else weight.tril()
            gate = weight @ v + bias
            if recording():
                operands = {"W": (weight, "token key"), "v": (v, "row key channel"), "b": (bias[:, 0], "token")}
                record("gate", gate, CELLS, "sum(W * v, key) + b", **operands)
                record("gated", u * gate, CELLS, "u * gate", u=(u, CELLS), gate=(gate, CELLS))
            return self.down(u * gate), None if state is None else state.append(v, layout)[0]
        state, place = state.append(v, layout)
        return self.down(u * self._gate(state.tokens.to(v.dtype), place)), state

    def _gate(self, seen: Tensor, place: Tensor) -> Tensor:
        """The gate of tokens at positions `place` [B, T], which differ between rows, over all tokens so far."""
        place = place.clamp_max(len(self.bias) - 1)  # padding may lie beyond the last position
        seen = seen[:, : len(self.bias)]
        cells = torch.arange(seen.size(1), device=seen.device)
        weight = torch.where(cells <= place[..., None], self.weight[:, : seen.size(1)][place], 0.0)
        return weight.to(seen.dtype) @ seen + self.bias[place][..., None]


class TokenMlpMixer(RowMixer):
    """W₂ gelu(W₁ x) over the positions of a row, the same for every channel (Tolstikhin et al. 2021).

    hidden: width between the two matrices
    max_length: number of positions of the matrices
    """

    paper = "Tolstikhin et al. 2021"
    cost = "n·hidden"
    uses = frozenset({"encoder"})
    instead: ClassVar[dict[str, str]] = {
        "causal": "its hidden layer depends on all tokens, including future ones; in a decoder use gmlp or aft",
        "cross": "its network has no query; attend to a source with an attention such as full",
    }

    def __init__(self, site: Site, *, hidden: PositiveInt = 256, max_length: PositiveInt = 1024) -> None:
        super().__init__(site)
        self.max_length = max_length
        self.up, self.up_bias = nn.Parameter(torch.empty(hidden, max_length)), nn.Parameter(torch.zeros(hidden))
        self.down, self.down_bias = nn.Parameter(torch.empty(max_length, hidden)), nn.Parameter(torch.zeros(max_length))
        nn.init.xavier_uniform_(self.up)
        nn.init.xavier_uniform_(self.down)

    def mix(self, x: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        extent = x.size(1)
        if layout is not None:
            x = torch.where(layout.mask[..., None], x, 0.0)
        before = self.up[:, :extent] @ x + self.up_bias[:, None]
        hidden = F.gelu(before)
        mixed = self.down[:extent] @ hidden + self.down_bias[:extent, None]
        if recording():
            slots = "row slot channel"
            operands = {"W": (self.up[:, :extent], "slot token"), "x": (x, CELLS), "b": (self.up_bias, "slot")}
            record("before", before, slots, "sum(W * x, token) + b", **operands)
            record("hidden", hidden, slots, "gelu(x)", x=(before, slots))
            operands = {"W": (self.down[:extent], "token slot"), "x": (hidden, slots), "b": (self.down_bias[:extent], "token")}
            record("mixed", mixed, CELLS, "sum(W * x, slot) + b", **operands)
        return mixed, None
