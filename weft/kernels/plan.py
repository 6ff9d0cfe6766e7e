"""Plans of decoders and encoders: flat lists of operations, made once from the modules, which C++ runs without Python.

A module that can be planned has a method `plan`, which calls a `Draft` as its `forward` calls torch. A module without one still
works: the search then runs one operation at a time. The structs are those of cpp/program.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.kernels.cpp import PANEL, WIDEST, PackedLinear

Register = int
"""A vector per row, as a number."""

Maker = Callable[[int], Tensor]
"""Makes a table with a row for each of the first n positions."""

COMPUTES = frozenset({"forward", "run", "start", "features", "logits", "read", "begin", "extend", "mix", "enter", "leave"})
"""Methods that compute. A class that overrides one of them does not inherit a plan."""

INT, POINTER = ctypes.c_int64, ctypes.c_void_p
(EMBED, NORM, LINEAR, ADD, RELU, GELU, SWIGLU, ROTATE, SELF, CROSS, WHOLE) = range(11)
ACTIVATIONS = {"relu": RELU, "gelu": GELU, "swiglu": SWIGLU}


class NotPlanned(WeftError):
    """A part cannot run natively. The message says which."""


class LinearStruct(ctypes.Structure):
    _fields_ = (("panels", POINTER), ("scale", POINTER), ("bias", POINTER), ("inputs", INT), ("outputs", INT))


class Op(ctypes.Structure):
    _fields_ = (
        *((name, INT) for name in ("kind", "to", "source", "other", "number", "heads", "width", "past")),
        ("value", ctypes.c_float), ("first", POINTER), ("second", POINTER), ("layer", LinearStruct),
    )  # fmt: skip


class MemoryStruct(ctypes.Structure):
    _fields_ = (("k", POINTER), ("v", POINTER), ("bias", POINTER), ("keys", INT))


class ProgramStruct(ctypes.Structure):
    _fields_ = (
        ("ops", POINTER), ("count", INT), ("widths", POINTER), ("registers", INT), ("cells", POINTER), ("caches", INT),
    )  # fmt: skip


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
    if type(layer) is not nn.Linear or layer.weight.dtype != torch.float32:
        raise NotPlanned(f"{type(layer).__name__} as a linear layer in this precision")
    weight = layer.weight.detach()
    panels = F.pad(weight, (0, 0, 0, -len(weight) % PANEL)).view(-1, PANEL, weight.size(1)).transpose(1, 2).contiguous()
    shift = None if layer.bias is None else layer.bias.detach().contiguous()
    place = None if shift is None else shift.data_ptr()
    return NativeLinear(LinearStruct(panels.data_ptr(), None, place, weight.size(1), weight.size(0)), (panels, shift))


class Draft:
    """A plan in the making. Methods append an operation and return the register of its result."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.widths: list[int] = []
        self.cells: list[int] = []
        self.memories = 0
        self.reader: Callable[[Any], Sequence[Any]] = lambda source: ()
        self.tables: list[Maker] = []
        self.held: list[object] = []

    def part(self, module: nn.Module, *given: Any) -> Any:
        """The plan of a module: its result, or NotPlanned if it has none or if a subclass changes what it computes."""
        for kind in type(module).__mro__:
            if "plan" in vars(kind):
                plan: Callable[..., Any] = vars(kind)["plan"]
                return plan(module, self, *given)
            if COMPUTES & vars(kind).keys():
                break
        raise NotPlanned(type(module).__name__)

    def reads(self, reader: Callable[[Any], Sequence[Any]]) -> None:
        """`reader(source)` returns the memories of an encoded source, in the order of the calls of `attend_memory`."""
        self.reader = reader

    def embed(self, table: nn.Embedding, scale: float, positions: Maker | None) -> Register:
        """The embedding of the token times a scale, plus that of its position, if any."""
        number = -1 if positions is None else self._table(positions)
        return self._add(EMBED, table.embedding_dim, number=number, value=scale, first=self._hold(table.weight))

    def norm(self, layer: nn.Module, x: Register) -> Register:
        if type(layer) is nn.Identity:
            return x
        if type(layer) is not nn.LayerNorm or len(layer.normalized_shape) != 1 or layer.bias is None:
            raise NotPlanned(type(layer).__name__)
        places = self._hold(layer.weight), self._hold(layer.bias)
        return self._add(NORM, self.widths[x], x, value=layer.eps, first=places[0], second=places[1])

    def linear(self, layer: nn.Module, x: Register) -> Register:
        if type(layer) is nn.Identity:
            return x
        native = native_linear(layer)
        self.held.append(native)
        return self._add(LINEAR, native.struct.outputs, x, layer=native.struct)

    def add(self, x: Register, y: Register) -> Register:
        return self._add(ADD, self.widths[x], x, other=y)

    def activate(self, kind: Literal["relu", "gelu", "swiglu"], x: Register) -> Register:
        return self._add(ACTIVATIONS[kind], self.widths[x] // 2 if kind == "swiglu" else self.widths[x], x)

    def rotate(self, x: Register, heads: int, turns: Maker) -> None:
        """Rotates the queries and keys in a joint product [3·H·D], in place. turns(n) [n, 2, D]: cosines and sines."""
        self._append(Op(ROTATE, x, x, x, self._table(turns), heads, self._head(self.widths[x] // 3, heads)))

    def attend(self, x: Register, heads: int, past: int | None = None, *, causal: bool = True) -> Register:
        """Self-attention of a joint product [3·H·D].

        past: how many earlier tokens a query sees, and as many later ones unless causal; None: all.
        """
        dim = self.widths[x] // 3
        width, to = self._head(dim, heads), self._register(dim)
        self.cells += [dim] * causal
        self._append(
            Op(SELF if causal else WHOLE, to, x, x, len(self.cells) - 1, heads, width, 0 if past is None else past + 1)
        )
        return to

    def attend_memory(self, x: Register, heads: int) -> Register:
        """Attention of queries [H·D] to the next memory."""
        dim, number = self.widths[x], self.memories
        width, to, self.memories = self._head(dim, heads), self._register(dim), number + 1
        self._append(Op(CROSS, to, x, x, number, heads, width))
        return to

    def _head(self, dim: int, heads: int) -> int:
        width = dim // heads
        if width % 16 or width > WIDEST:
            raise NotPlanned(f"heads of width {width} (a multiple of 16 up to {WIDEST} is supported)")
        return width

    def _table(self, maker: Maker) -> int:
        self.tables.append(maker)
        return len(self.tables) - 1

    def _hold(self, tensor: Tensor) -> int:
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise NotPlanned(f"weights in {str(tensor.dtype).removeprefix('torch.')}")
        self.held.append(tensor)
        return tensor.data_ptr()

    def _register(self, width: int) -> Register:
        self.widths.append(width)
        return len(self.widths) - 1

    def _add(self, kind: int, width: int, x: Register | None = None, **fields: Any) -> Register:
        to = self._register(width)
        read = to if x is None else x
        self._append(Op(kind, to, read, fields.pop("other", read), width=width, **fields))
        return to

    def _append(self, op: Op) -> None:
        self.ops.append(op)


class Program:
    """A finished plan. `hidden` is the width of its result."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self.hidden = draft, draft.widths[draft.ops[-1].to]
        self.read, self.memories = draft.reader, draft.memories
        widths = _share(draft.ops, draft.widths)
        self._ops = (Op * len(draft.ops))(*draft.ops)
        self._widths, self._cells = (INT * len(widths))(*widths), (INT * len(draft.cells))(*draft.cells)
        self._tables: list[Tensor] = []
        places = [ctypes.cast(each, POINTER).value for each in (self._ops, self._widths, self._cells)]
        self.struct = ProgramStruct(places[0], len(self._ops), places[1], len(widths), places[2], len(self._cells))

    def tables(self, length: int) -> list[Tensor]:
        """The tables of positions, with at least `length` rows."""
        if self._draft.tables and (not self._tables or len(self._tables[0]) < length):
            size = 1 << (length - 1).bit_length()
            self._tables = [make(max(size, 64)).float().contiguous() for make in self._draft.tables]
        return self._tables


def _share(ops: list[Op], widths: list[int]) -> list[int]:
    """Lets results that are not needed at the same time share registers. Returns the widths of the registers that are left."""
    last = {register: at for at, op in enumerate(ops) for register in (op.to, op.source, op.other)}
    left: list[int] = []
    free: dict[int, list[int]] = {}
    place: dict[int, int] = {}
    for at, op in enumerate(ops):
        for register in {op.to, op.source, op.other} - place.keys():
            spare = free.setdefault(widths[register], [])
            if not spare:
                spare.append(len(left))
                left.append(widths[register])
            place[register] = spare.pop()
        for register in {op.to, op.source, op.other}:
            if last[register] == at and at + 1 < len(ops):
                free.setdefault(widths[register], []).append(place[register])
        op.to, op.source, op.other = place[op.to], place[op.source], place[op.other]
    return left
