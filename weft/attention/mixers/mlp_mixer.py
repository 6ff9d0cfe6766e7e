"""A multilayer perceptron over positions in place of self-attention."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.attention.base import Site
from weft.attention.mixers.base import RowMixer
from weft.data.batch import Layout
from weft.layers.decoder_state import State


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
            x = torch.where(layout.ok[..., None], x, 0.0)
        hidden = F.gelu(self.up[:, :extent] @ x + self.up_bias[:, None])
        return self.down[:extent] @ hidden + self.down_bias[:extent, None], None
