"""A recurrent layer in place of self-attention."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Attended, Site
from weft.batch import Layout
from weft.errors import ConfigError
from weft.layers.recurrent import turn_round
from weft.mixers.base import Mixer
from weft.state import State


class RecurrentMixer(Mixer):
    """A GRU (Cho et al. 2014): in an encoder one each way, half the width each; in a decoder left to right.

    layers: GRUs on top of each other
    """

    paper = "Cho et al. 2014; Chen et al. 2018"
    cost = "n (in sequence)"
    uses = frozenset({"encoder", "causal"})

    def __init__(self, site: Site, *, layers: PositiveInt = 1) -> None:
        super().__init__(site)
        both = site.use == "encoder"
        if both and site.dim % 2:
            raise ConfigError(f"a recurrent encoder layer halves the width; {site.dim} is odd")
        width = site.dim // 2 if both else site.dim
        self.forth = nn.GRU(site.dim, width, layers, batch_first=True)
        self.back = nn.GRU(site.dim, width, layers, batch_first=True) if both else None
        self.out = nn.Linear(site.dim, site.dim)

    def start(self, *, rows: int = 1, room: int | None = None) -> State:
        if self.back is not None:
            return None
        weight = self.out.weight
        return weight.new_zeros(rows, self.forth.num_layers, self.forth.hidden_size)

    def forward(self, x: Tensor, state: State, *, layout: Layout | None = None, need_weights: bool = False) -> Attended:
        if self.back is not None:
            forth, back = self.forth(x)[0], self.back(turn_round(x, layout))[0]
            return Attended(self.out(torch.cat([forth, turn_round(back, layout)], -1)), None)
        outputs, state = self._steps(x, state, layout)
        return Attended(self.out(outputs), state)

    def _steps(self, x: Tensor, state: Tensor, layout: Layout | None) -> tuple[Tensor, Tensor]:
        """Outputs and the hidden state [B, layers, D] after each row's last real token."""
        hidden = state.to(x.dtype).transpose(0, 1).contiguous()
        if layout is None or self.forth.num_layers == 1:
            outputs, last = self.forth(x, hidden)
            if layout is not None:
                count = layout.lengths
                at = (count - 1).clamp_min(0)[:, None, None].expand(-1, 1, outputs.size(-1))
                last = torch.where((count > 0)[None, :, None], outputs.gather(1, at).transpose(0, 1), hidden)
            return outputs, last.transpose(0, 1)
        steps = []
        for t in range(x.size(1)):
            output, new = self.forth(x[:, t : t + 1], hidden)
            hidden = torch.where(layout.ok[None, :, t, None], new, hidden)
            steps.append(output)
        return torch.cat(steps, 1), hidden.transpose(0, 1)
