"""Int8 linear layers for decoding on a CPU.

Weights have a scale per output and inputs a scale per row, so the outputs of a row do not depend on other rows. Products are
summed as integers, which is exact in any order. Shapes: N rows · I inputs · O outputs; B rows of a batch · T tokens.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from weft.data.batch import Layout
from weft.errors import DeviceError
from weft.layers.kernels.cpp import Kernels
from weft.layers.kernels.cpp_plan import PlanBuilder, Register
from weft.layers.linear_norm_dropout import NormedLinear, replace_layers
from weft.layers.recurrent import Cell, RecurrentLayer

MIN_OUTPUTS = 16
"""Layers with fewer outputs stay in floating point: rounding their inputs would cost more than the product itself."""

KERNEL = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
"""FBGEMM's kernel: rounds rows by a given scale and zero point, multiplies them with packed weights, and returns float32."""

TINY = 1e-30
"""The smallest scale of weights, for outputs whose weights are all 0."""


class Int8Linear(nn.Module):
    """y = W x + b with W and x rounded to int8: [N, I] in any precision → [N, O] in float32."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Kernels | None = None) -> None:
        """`weight` [O, I], rounded or not. With `kernels` the layer is one C++ operation, otherwise several of torch."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # Without VNNI, FBGEMM adds pairs of products in 16 bits, which leaves half as many levels.
        self.levels = 127 if kernels is not None or torch.cpu._is_vnni_supported() else 63
        self.register_buffer("bias", None if bias is None else bias.detach().float())
        rounded = weight if weight.is_quantized else _round(weight.detach().float())
        self.kernels, self._scale = kernels, rounded.q_per_channel_scales()
        if kernels is None:
            self.packed: Any = torch.ops.quantized.linear_prepack(rounded, None)
        else:
            scale, lasting = self._scale.float() * (1 / self.levels), not weight.is_quantized
            self.packed = kernels.pack(rounded.int_repr(), scale, self.bias, lasting=lasting)

    @cached_property
    def weight(self) -> Tensor:
        """The rounded weights [O, I] in float32."""
        return self._numbers * self._scale[:, None].float()

    @cached_property
    def _numbers(self) -> Tensor:
        """The rounded weights [O, I] as int8, unpacked once if needed."""
        if self.kernels is None:
            return torch.ops.quantized.linear_unpack(self.packed)[0].int_repr()
        return self.packed.unpack()

    def rows(self, outputs: Tensor) -> Int8Linear:
        """The same layer restricted to some of its outputs [N]."""
        zero = torch.zeros(len(outputs), dtype=torch.long)
        rounded = torch._make_per_channel_quantized_tensor(self._numbers[outputs], self._scale[outputs], zero, 0)
        return Int8Linear(rounded, None if self.bias is None else self.bias[outputs], self.kernels)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            x = x.float()
        if self.kernels is not None:
            return self.packed(x)
        # A row of zeros is divided by 0. The kernel still returns finite numbers, and times 0 they are 0.
        largest = x.abs().amax(-1, keepdim=True)
        output: Tensor = KERNEL(x / largest, 1 / self.levels, self.levels + 1, self.packed)
        return output.mul_(largest) if self.bias is None else torch.addcmul(self.bias, output, largest, out=output)


class Int8Recurrent(nn.Module):
    """A recurrent layer whose single steps run in int8. Whole sequences keep using the fused floating-point kernels."""

    def __init__(self, layer: RecurrentLayer, kernels: Kernels | None) -> None:
        super().__init__()
        self.layer = layer
        reads, keeps, *biases = layer.rnn.all_weights[0]
        self.reads, self.keeps = Int8Linear(reads, biases[0], kernels), Int8Linear(keeps, biases[1], kernels)

    def init_state(self, rows: int) -> Cell:
        return self.layer.init_state(rows)

    def forward(self, x: Tensor, state: Cell, layout: Layout | None) -> tuple[Tensor, Cell]:
        if layout is not None or x.size(1) > 1:
            return self.layer(x, state, layout)
        cell = self.step(x[:, 0], state)
        return cell[0][:, None], cell

    def plan(self, draft: PlanBuilder, x: Register, state: int) -> Register:
        kept = draft.linear(self.keeps, draft.recall(state, self.layer.rnn.hidden_size))
        return draft.cell(self.layer.kind, state, draft.linear(self.reads, x), kept)

    def step(self, x: Tensor, state: Cell) -> Cell:
        new, old = self.reads(x), self.keeps(state[0])
        if self.layer.parts == 1:
            gates, fresh = new.tensor_split([2 * state[0].size(1)], -1)
            past_gates, past = old.tensor_split([2 * state[0].size(1)], -1)
            reset, update = torch.sigmoid(gates + past_gates).chunk(2, -1)
            fresh = torch.tanh(fresh + reset * past)
            return (torch.lerp(fresh, state[0].float(), update),)
        enter, forget, fresh, leave = (new + old).chunk(4, -1)
        cell = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(fresh)
        return torch.sigmoid(leave) * torch.tanh(cell), cell


Part = TypeVar("Part", bound=nn.Module)


def in_precision(model: Part, precision: str, kernels: Kernels | None = None) -> Part:
    """A copy of the model with its weights in bf16 or int8; for float32, the model itself."""
    if precision == "float32":
        return model
    return in_int8(model, kernels) if precision == "int8" else deepcopy(model).bfloat16()


def in_int8(model: Part, kernels: Kernels | None = None) -> Part:
    """A copy of the model, on a CPU, with int8 linear layers; it shares all other tensors with the model.

    With `kernels` the layers run the C++ kernels of `weft.layers.kernels.cpp`.
    """
    tensors = [*model.parameters(), *model.buffers()]
    elsewhere = next((each.device for each in tensors if each.device.type != "cpu"), None)
    if elsewhere is not None:
        raise DeviceError(f"decode.precision: int8 runs on a CPU only; on {elsewhere} use bf16, or use --device cpu")
    if kernels is None and torch.backends.quantized.engine not in ("x86", "fbgemm"):
        raise DeviceError(
            "decode.precision: int8 needs decode.compile, or an x86 CPU and a torch with FBGEMM, which is not available here "
            f"(torch.backends.quantized.engine is {torch.backends.quantized.engine}); use float32 or bf16"
        )
    copy = deepcopy(model, {id(each): each for each in tensors})
    rounded: dict[nn.Module, nn.Module] = {}
    for part in copy.modules():
        # Subclasses of nn.Linear do more than multiply, so they stay as they are.
        if isinstance(part, NormedLinear) or (type(part) is nn.Linear and part.out_features >= MIN_OUTPUTS):
            rounded[part] = Int8Linear(part.weight, part.bias, kernels)
        elif isinstance(part, RecurrentLayer) and part.ways == 1 and part.kind != "rnn":
            rounded[part] = Int8Recurrent(part, kernels)
    replace_layers(copy, rounded)
    return copy


def _round(weight: Tensor) -> Tensor:
    """Weights [O, I] as int8, with a scale per output."""
    scale = (weight.abs().amax(1) / 127).clamp_min(TINY).double()
    with warnings.catch_warnings():
        # Quantised tensor types are deprecated in torch, but the kernel takes nothing else.
        warnings.simplefilter("ignore", UserWarning)
        return torch.quantize_per_channel(weight, scale, torch.zeros(len(scale), dtype=torch.long), 0, torch.qint8)
