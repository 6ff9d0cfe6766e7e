"""Linear layers in eight bits, for decoding on a CPU.

Every output has a scale for its weights and every row one for what it reads, so what a row gives does not depend on the rows
beside it. Products are summed up as whole numbers, which are exact in any order. Shapes: N rows · I inputs · O outputs.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import DeviceError
from weft.layers.weightnorm import NormedLinear

FEWEST = 16
"""Layers with fewer outputs stay as they are: rounding their inputs would cost more than the product itself."""

LEVELS = 127 if torch.cpu._is_vnni_supported() else 63
"""Steps from 0 to the largest input of a row. CPUs without dot products of bytes add pairs of them up in 16 bits, so that only
half as many steps fit."""

TINY = 1e-30
"""The least scale: rows of zeros stay zeros."""


class Int8Linear(nn.Module):
    """y = W x + b with W and x rounded to eight bits: [N, I] in any precision → [N, O] in float32."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = _pack(weight.detach().float())
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    @property
    def weight(self) -> Tensor:
        """[O, I], as rounded. It is made anew every time, for who asks what the weights are like."""
        rounded: Tensor = torch.ops.quantized.linear_unpack(self.packed)[0]
        return rounded.dequantize()

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        largest = x.abs().amax(-1, keepdim=True).clamp_min_(TINY)
        found: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x / largest, 1 / LEVELS, LEVELS + 1, self.packed
        )
        return found.mul_(largest) if self.bias is None else torch.addcmul(self.bias, found, largest)


def to_int8(model: nn.Module) -> None:
    """Every linear layer of the model in eight bits, in place; tables that are looked up stay as they are."""
    if torch.backends.quantized.engine not in ("x86", "fbgemm"):
        raise DeviceError(
            "decode.precision: int8 needs an x86 CPU and a torch with FBGEMM, which is not in use here "
            f"(torch.backends.quantized.engine is {torch.backends.quantized.engine}); use float32 or bf16"
        )
    _replace(model, {})


def _replace(module: nn.Module, known: dict[nn.Module, Int8Linear]) -> None:
    for name, part in module.named_children():
        # Classes derived from nn.Linear do more than multiply, so they are left alone.
        if isinstance(part, NormedLinear) or (type(part) is nn.Linear and part.out_features >= FEWEST):
            if part not in known:
                known[part] = Int8Linear(part.weight, part.bias)
            setattr(module, name, known[part])
        else:
            _replace(part, known)


def _pack(weight: Tensor) -> Any:
    """Weights [O, I] as the kernel wants them, with a scale for each output."""
    scale = (weight.abs().amax(1) / 127).clamp_min(TINY).double()
    with warnings.catch_warnings():
        # Tensors of torch's quantised types are deprecated, but there is no other way to the kernel.
        warnings.simplefilter("ignore", UserWarning)
        rounded = torch.quantize_per_channel(weight, scale, torch.zeros(len(scale), dtype=torch.long), 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(rounded, None)
