"""Linear layers: precision, Xavier initialisation, weight normalisation, and replacing layers of a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.layers.kernels.cpp_plan import PlanBuilder, Register


def to_autocast_dtype(x: Tensor) -> Tensor:
    """`x` in the precision in which autocast computes products, so that not every use converts it again."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if kind != "meta" and torch.is_autocast_enabled(kind) else x


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision of sums: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def to_float32(x: Tensor) -> Tensor:
    """`x`, converted to float32 if it is in half precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def xavier(layer: nn.Linear, parts: int = 1) -> None:
    """Initialises each of `parts` equally wide blocks of outputs as if it were a layer of its own, and the bias to 0."""
    for block in layer.weight.detach().chunk(parts):
        nn.init.xavier_uniform_(block)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def linear_with(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A layer with this weight [outputs, inputs] and bias, which become parameters unless they are."""
    layer = nn.Linear(weight.size(1), weight.size(0), bias=bias is not None, device="meta")
    layer.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias, requires_grad=False)
    return layer


def replace_layers(model: nn.Module, layers: Mapping[nn.Module, nn.Module]) -> None:
    """Puts other layers in the place of some, wherever the model uses them."""
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if layer in layers:
            model.set_submodule(name, layers[layer])


class NormedLinear(nn.Module):
    """y = w x + b with each row of w split into a length and a direction, w = g v / ‖v‖ (Salimans & Kingma 2016).

    Initially w is drawn from N(0, gain / inputs), so that the variance of the outputs is `gain` times that of the inputs, and g
    is the length of its rows. Dropout with share p before the layer multiplies the variance by 1 / (1 − p), and a gated linear
    unit after it divides it by 4: a gain of 1 − p, or of 4 (1 − p), compensates (Gehring et al. 2017, section 3.5).
    """

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0) -> None:
        super().__init__()
        drawn = torch.empty(outputs, inputs).normal_(std=(gain / inputs) ** 0.5)
        self.direction = nn.Parameter(drawn)
        self.length = nn.Parameter(drawn.norm(dim=1))
        self.bias = nn.Parameter(torch.zeros(outputs))

    @property
    def weight(self) -> Tensor:
        """w [outputs, inputs]."""
        return self.direction * (self.length / self.direction.norm(dim=1))[:, None]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        return draft.product(self.weight, self.bias, x)
