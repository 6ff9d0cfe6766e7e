"""The position-wise network of a Transformer block."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from weft.layers.dropout import dropout

Activation = Literal["relu", "gelu", "swiglu"]


class FeedForward(nn.Module):
    """W₂ f(W₁ x): ReLU as published, GELU, or the gated SwiGLU (Shazeer 2020), which has a third matrix."""

    def __init__(self, dim: int, hidden: int, activation: Activation = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.activation = activation
        self.dropout = dropout
        self.up = nn.Linear(dim, 2 * hidden if activation == "swiglu" else hidden)
        self.down = nn.Linear(hidden, dim)
        for block in self.up.weight.detach().split(hidden):
            nn.init.xavier_uniform_(block)
        nn.init.xavier_uniform_(self.down.weight)
        nn.init.zeros_(self.up.bias)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        if self.activation == "relu":
            hidden = F.relu(hidden)
        elif self.activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            gate, value = hidden.chunk(2, -1)
            hidden = F.silu(gate) * value
        return self.down(dropout(hidden, self.dropout, self.training))
