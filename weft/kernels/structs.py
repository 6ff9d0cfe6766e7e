"""The structs of cpp/program.h, and linear layers in the memory layout of the kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.kernels.cpp import PANEL, PackedLinear

INT, POINTER = ctypes.c_int64, ctypes.c_void_p


class NotPlanned(WeftError):
    """A part cannot run natively. The message says which."""


class Kind(IntEnum):
    """Kinds of operations, in the order of the C++ type."""

    EMBED, NORM, LINEAR, ADD, JOIN = range(5)
    RELU, GELU, TANH, SWIGLU, GLU, MAXOUT = range(5, 11)
    RECALL, HOLD, GRU, LSTM = range(11, 15)
    WINDOW, AROUND = range(15, 17)
    ROTATE, SELF, WHOLE, CROSS, ADDITIVE, SUMS, WHOLE_SUMS, CROSS_SUMS = range(17, 25)
    SPREAD, WITHIN = range(25, 27)


class LinearStruct(ctypes.Structure):
    _fields_ = (("panels", POINTER), ("scale", POINTER), ("bias", POINTER), ("inputs", INT), ("outputs", INT))


class Op(ctypes.Structure):
    _fields_ = (
        *((name, INT) for name in ("kind", "to", "source", "other", "number", "heads", "width", "values", "past", "then")),
        ("rate", INT),
        ("value", ctypes.c_float), ("first", POINTER), ("second", POINTER), ("layer", LinearStruct),
    )  # fmt: skip


class MemoryStruct(ctypes.Structure):
    _fields_ = (("k", POINTER), ("v", POINTER), ("bias", POINTER), ("gain", POINTER), ("keys", INT))


class ProgramStruct(ctypes.Structure):
    _fields_ = (
        ("ops", POINTER), ("count", INT), ("widths", POINTER), ("registers", INT), ("cells", POINTER), ("caches", INT),
        ("held", POINTER), ("states", INT),
    )  # fmt: skip


class InputsStruct(ctypes.Structure):
    _fields_ = (("memories", POINTER), ("tables", POINTER), ("starts", POINTER), ("ids", POINTER), ("given", POINTER))


@dataclass(frozen=True)
class NativeLinear:
    """A linear layer for C++, and the tensors that it points to."""

    struct: LinearStruct
    held: object


def native_linear(layer: nn.Module) -> NativeLinear:
    """The layer in the memory layout of the kernels: int8 as it was packed, float32 packed now."""
    packed = getattr(layer, "packed", None)
    if isinstance(packed, PackedLinear):
        bias = None if packed.bias is None else packed.bias.data_ptr()
        struct = LinearStruct(packed.panels.data_ptr(), packed.scale.data_ptr(), bias, packed.inputs, packed.outputs)
        return NativeLinear(struct, packed)
    if type(layer) is not nn.Linear:
        raise NotPlanned(type(layer).__name__)
    return native_product(layer.weight, layer.bias)


def native_product(weight: Tensor, bias: Tensor | None) -> NativeLinear:
    """The layer with these weights [O, I], in float32."""
    if weight.dtype != torch.float32:
        raise NotPlanned(f"weights in {str(weight.dtype).removeprefix('torch.')}")
    weight = weight.detach()
    panels = F.pad(weight, (0, 0, 0, -len(weight) % PANEL)).view(-1, PANEL, weight.size(1)).transpose(1, 2).contiguous()
    shift = None if bias is None else bias.detach().contiguous()
    place = None if shift is None else shift.data_ptr()
    return NativeLinear(LinearStruct(panels.data_ptr(), None, place, weight.size(1), weight.size(0)), (panels, shift))
