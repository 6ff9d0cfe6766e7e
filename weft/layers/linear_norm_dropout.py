"""Linear layers (precision, initialisation, weight normalisation, replacement), dropout, and residual sums with layer norm."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from weft.layers.kernels import triton_available
from weft.layers.kernels.cpp_plan import PlanBuilder, Register
from weft.layers.step_recorder import record_linear


def to_autocast_dtype(x: Tensor) -> Tensor:
    """`x` in the precision in which autocast computes products, so that not every use converts it again."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if kind != "meta" and torch.is_autocast_enabled(kind) else x


class without_gradient(torch.no_grad):  # noqa: N801
    """Like torch.no_grad, for a pass in training that is followed by one with gradients.

    Before version 2.11, torch keeps the weights that autocast has converted here, and the pass with gradients would use them:
    no weight would learn.
    """

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.clear_autocast_cache()


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
        weight = self.weight
        output = F.linear(x, weight, self.bias)
        record_linear(x, output, weight, self.bias)
        return output

    def plan(self, draft: PlanBuilder, x: Register) -> Register:
        return draft.product(self.weight, self.bias, x)


Rate = Annotated[float, Field(ge=0, lt=1)]
"""A dropout rate."""

MAX_WIDTH = 4096
"""The widest row that the fused kernel can hold."""


def dropout(x: Tensor, share: float, training: bool = True) -> Tensor:
    """In training, `x` with a random `share` of its entries set to 0 and the others scaled up; otherwise `x` itself.

    On a CPU each 64 random bits give four 16-bit numbers, which is five times as fast as torch's dropout; the share is then
    exact to 2⁻¹⁶. The numbers come from torch's generator, so a seed determines them.
    """
    if not training or share == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, share, training)
    count = x.numel()
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    keep = (bits >= round(share * 2**16) - 2**15).to(x.dtype).mul_(1 / (1 - share))
    return x * keep.view(x.shape)


def norm_sum(norm: nn.Module, x: Tensor, update: Tensor, share: float, training: bool) -> Tensor:
    """norm(x + dropout(update)).

    In training on a GPU, a bf16 update gives a bf16 result, with sum and norm computed in float32.
    """
    fused = training and update.dtype == torch.bfloat16 and update.size(-1) <= MAX_WIDTH and type(norm) is nn.LayerNorm
    if fused and triton_available(update):
        from weft.layers.kernels.triton.add_norm import add_norm

        seed = torch.randint(1 << 62, (1,), device=x.device) if share else None
        return add_norm(x, update, norm.weight, norm.bias, seed, share, norm.eps)[0]
    return norm(x + dropout(update, share, training))


def residual(x: Tensor, training: bool) -> Tensor:
    """The input of `norm_sum` sub-layers, in the precision that they return, so that all layers compile to one program."""
    return to_autocast_dtype(x) if training and triton_available(x) else x
