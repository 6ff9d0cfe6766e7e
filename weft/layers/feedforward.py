"""The feed-forward network of a Transformer block, optionally over a window of tokens."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.data.batch import Layout
from weft.layers.convolution import TokenWindow
from weft.layers.kernels import triton_available
from weft.layers.kernels.cpp_plan import PlanBuilder, Register
from weft.layers.linear_norm_dropout import dropout, to_autocast_dtype, xavier
from weft.layers.step_recorder import record, recording

Activation = Literal["relu", "gelu", "silu", "swiglu"]


class FeedForward(nn.Module):
    """W₂ f(W₁ x): ReLU as published, GELU, SiLU, or the gated SwiGLU (Shazeer 2020), which has a third matrix.

    With a window, x is a token with its neighbours and W₁ a convolution, as used for tagging (Tan et al. 2018).
    """

    def __init__(
        self, dim: int, hidden: int, activation: Activation = "relu", dropout: float = 0.0, window: TokenWindow | None = None
    ) -> None:
        super().__init__()
        self.activation, self.dropout, self.window = activation, dropout, window
        inputs = dim if window is None else window.width * dim
        self.up = nn.Linear(inputs, 2 * hidden if activation == "swiglu" else hidden)
        self.down = nn.Linear(hidden, dim)
        xavier(self.up, self.up.out_features // hidden)
        xavier(self.down)

    def init_state(self, rows: int) -> Tensor | None:
        """The tail before the first token, if there is a causal window."""
        return None if self.window is None else self.window.init_state(rows, self.down.weight)

    def run(self, x: Tensor, tail: Tensor | None, layout: Layout | None) -> tuple[Tensor, Tensor | None]:
        """x [B, T, D], a whole sequence or a chunk of one → [B, T, D], and the tail after it."""
        if self.window is not None:
            x, tail = self.window(x, tail, layout)
        return self(x), tail

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        if self.window is not None:
            x = self.window.plan(draft, x)
        return draft.linear(self.down, draft.activate(self.activation, draft.linear(self.up, x)))

    def forward(self, x: Tensor) -> Tensor:
        fused = self.activation == "relu" and self.training and type(self.up) is nn.Linear and triton_available(x)
        if fused and (torch.is_autocast_enabled(x.device.type) or x.dtype == torch.bfloat16):
            from weft.layers.kernels.triton.linear_relu import linear_relu

            hidden = linear_relu(*map(to_autocast_dtype, (x.flatten(0, -2), self.up.weight, self.up.bias)))
            return self.down(dropout(hidden.unflatten(0, x.shape[:-1]), self.dropout))
        hidden = self.up(x)
        before = hidden.clone() if recording() else hidden
        if self.activation == "relu":
            hidden = F.relu(hidden, inplace=True)  # in place: no one else uses it, and it is the largest activation
        elif self.activation == "gelu":
            hidden = F.gelu(hidden)
        elif self.activation == "silu":
            hidden = F.silu(hidden)
        else:
            gate, value = hidden.chunk(2, -1)
            hidden = F.silu(gate) * value
        if recording():
            self._record(before, hidden)
        return self.down(dropout(hidden, self.dropout, self.training))

    def _record(self, before: Tensor, hidden: Tensor) -> None:
        """Records the layer inside, given its input of the activation [B, T, D]."""
        if before.dim() != 3:
            return
        axes = "row token channel"
        if self.activation != "swiglu":
            return record("hidden", hidden, axes, f"{self.activation}(x)", x=(before, axes))
        gate, value = before.chunk(2, -1)
        record("gate", gate, axes)
        record("value", value, axes)
        return record("hidden", hidden, axes, "silu(gate) * value", gate=(gate, axes), value=(value, axes))
