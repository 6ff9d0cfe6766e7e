"""Plans of decoders and encoders: flat lists of operations, made once from the modules, which C++ runs without Python.

A module that can be planned has a method `plan`, which calls a `PlanBuilder` as its `forward` calls torch. A module without one
still works: the search then runs one operation at a time. The structs are those of cpp/program.h.

Shapes: G sources · H heads · S keys · D head width.
"""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.kernels.cpp import INT, PANEL, POINTER, Kernels, PackedLinear

Register = int
"""A vector per row, as a number."""

Maker = Callable[[int], Tensor]
"""Makes a table with a row for each of the first n positions."""

Activation = Literal["relu", "gelu", "silu", "tanh", "swiglu", "glu", "maxout"]
HALVING = frozenset({"swiglu", "glu", "maxout"})


class NotPlanned(WeftError):
    """A part cannot run natively. The message says which."""


class Kind(IntEnum):
    """Kinds of operations, in the order of the C++ type."""

    EMBED, NORM, LINEAR, ADD, JOIN = range(5)
    RELU, GELU, SILU, TANH, SWIGLU, GLU, MAXOUT = range(5, 12)
    RECALL, HOLD, GRU, LSTM = range(12, 16)
    WINDOW, AROUND = range(16, 18)
    ROTATE, SELF, WHOLE, CROSS, ADDITIVE, SUMS, WHOLE_SUMS, CROSS_SUMS = range(18, 26)
    SPREAD, WITHIN = range(26, 28)


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


@dataclass(frozen=True)
class Keys:
    """The memory that an attention reads: k, v [G, H, S, D], bias [G, S], and gain [G], a factor of the context."""

    k: Tensor
    v: Tensor | None = None
    bias: Tensor | None = None
    gain: Tensor | None = None

    @staticmethod
    def masked(k: Tensor, v: Tensor, mask: Tensor | None, gain: Tensor | None = None) -> Keys:
        """With a bias that hides masked keys [G, S]."""
        return Keys(k, v, None if mask is None else torch.where(mask, 0.0, float("-inf")), gain)


@dataclass(frozen=True)
class Opening:
    """The inputs of a search: the state of each attention to the source, in order, and first states [G, width]."""

    memories: Sequence[Any] = ()
    states: Sequence[Tensor | None] = ()


@dataclass
class PlanBuilder:
    """A plan in the making. Methods append an operation and return the register of its result.

    cells, held: the widths of caches and states · readers: turn the state of each attention to the source into its keys ·
    memory: the encoded source, if the plan reads it itself.
    """

    ops: list[Op] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    readers: list[Callable[[Any], Keys]] = field(default_factory=list)
    opening: Callable[[Any, Any], Opening] = lambda decoder, source: Opening()
    tables: list[Maker] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)
    memory: Register | None = None

    def part(self, module: nn.Module, *inputs: Any) -> Any:
        """The plan of a module: its result, or NotPlanned if it has none or if a subclass changes what it computes."""
        kinds = type(module).__mro__
        owner = next((at for at, kind in enumerate(kinds) if "plan" in vars(kind)), None)
        if owner is None or any(_overrides(kind, kinds[owner]) for kind in kinds[:owner]):
            raise NotPlanned(type(module).__name__)
        plan: Callable[..., Any] = vars(kinds[owner])["plan"]
        return plan(module, self, *inputs)

    def opens(self, opening: Callable[[Any, Any], Opening]) -> None:
        """`opening(decoder, source)` returns the inputs of a search over an encoded source."""
        self.opening = opening

    def embed(self, table: nn.Embedding, scale: float, positions: Maker | None) -> Register:
        """The embedding of the token times a scale, plus that of its position, if any."""
        number = -1 if positions is None else self._table(positions)
        return self._add(Kind.EMBED, table.embedding_dim, number=number, value=scale, first=self._hold(table.weight))

    def given(self, width: int) -> Register:
        """The vector of each token, which the caller has computed."""
        return self._add(Kind.EMBED, width, number=-1, value=1.0)

    def norm(self, layer: nn.Module, x: Register) -> Register:
        if type(layer) is nn.Identity:
            return x
        if type(layer) is not nn.LayerNorm or len(layer.normalized_shape) != 1 or layer.bias is None:
            raise NotPlanned(type(layer).__name__)
        places = self._hold(layer.weight), self._hold(layer.bias)
        return self._add(Kind.NORM, self.widths[x], x, value=layer.eps, first=places[0], second=places[1])

    def stack(self, layers: Iterable[nn.Module], norm: nn.Module, x: Register) -> Register:
        """Layers one after the other, and the norm after the last."""
        for layer in layers:
            x = self.part(layer, x)
        return self.norm(norm, x)

    def linear(self, layer: nn.Module, x: Register) -> Register:
        if type(layer) is nn.Identity:
            return x
        return self.part(layer, x) if hasattr(layer, "plan") else self._product(native_linear(layer), x)

    def product(self, weight: Tensor, bias: Tensor | None, x: Register) -> Register:
        """W x + b in float32."""
        return self._product(native_product(weight, bias), x)

    def add(self, x: Register, y: Register, scale: float = 1.0) -> Register:
        """(x + y) times a scale."""
        return self._add(Kind.ADD, self.widths[x], x, other=y, value=scale)

    def join(self, *parts: Register) -> Register:
        """[x; y; …]"""
        x = parts[0]
        for y in parts[1:]:
            widths = self.widths[x], self.widths[y]
            x = self._add(Kind.JOIN, sum(widths), x, other=y, width=widths[0], values=widths[1])
        return x

    def activate(self, kind: Activation, x: Register) -> Register:
        return self._add(Kind[kind.upper()], self.widths[x] // 2 if kind in HALVING else self.widths[x], x)

    def state(self, width: int) -> int:
        """A vector that each row keeps from step to step; its first value is that of the opening, otherwise zeros."""
        self.held.append(width)
        return len(self.held) - 1

    def recall(self, state: int, width: int | None = None) -> Register:
        """The state, or its first `width` numbers."""
        return self._add(Kind.RECALL, width or self.held[state], number=state)

    def hold(self, state: int, x: Register) -> None:
        """Sets the state."""
        self.ops.append(Op(Kind.HOLD, x, x, x, state, width=self.held[state]))

    def cell(self, kind: str, state: int, read: Register, kept: Register) -> Register:
        """The new state h of a GRU or LSTM, from the products of its input and of its old state, which it replaces."""
        parts = 3 if kind == "gru" else 4
        return self._add(Kind[kind.upper()], self.widths[read] // parts, read, other=kept, number=state)

    def window(self, x: Register, width: int, distance: int, *, causal: bool) -> Register:
        """`width` tokens, `distance` apart, side by side: the last ones, which are kept in a state, or those around x."""
        dim, kind = self.widths[x], Kind.WINDOW if causal else Kind.AROUND
        number = self.state((width - 1) * distance * dim) if causal else -1
        return self._add(kind, width * dim, x, number=number, heads=width, width=dim, past=distance)

    def rotate(self, x: Register, heads: int, turns: Maker) -> None:
        """Rotates the queries and keys in a joint product [3·H·D], in place. turns(n) [n, 2, D]: cosines and sines."""
        self.ops.append(Op(Kind.ROTATE, x, x, x, self._table(turns), heads, self.widths[x] // 3 // heads))

    def attend(self, x: Register, heads: int, past: int | None = None, *, causal: bool = True) -> Register:
        """Self-attention of a joint product [3·H·D].

        past: how many earlier tokens a query sees, and as many later ones unless causal; None: all.
        """
        dim, kind = self.widths[x] // 3, Kind.SELF if causal else Kind.WHOLE
        self.cells += [dim] * causal
        number, seen, width = len(self.cells) - 1, 0 if past is None else past + 1, dim // heads
        return self._add(kind, dim, x, number=number, heads=heads, width=width, past=seen, value=1 / math.sqrt(width))

    def spread(self, x: Register, factor: int, positions: Maker | None) -> Register:
        """The `factor` parts of each token's vector as rows of their own, plus the embeddings of their positions, if any."""
        number = -1 if positions is None else self._table(positions)
        return self._add(Kind.SPREAD, self.widths[x] // factor, x, number=number, heads=factor)

    def attend_tokens(self, x: Register, keys_values: Register, heads: int) -> Register:
        """Attention of queries [H·D], which have been spread, to all tokens of their sequence, by a joint product [2·H·D]."""
        width = self.widths[x] // heads
        sizes = {"heads": heads, "width": width, "value": 1 / math.sqrt(width)}
        return self._add(Kind.WITHIN, self.widths[x], x, other=keys_values, number=-1, **sizes)

    def attend_sums(self, x: Register, heads: int, *, causal: bool) -> Register:
        """Self-attention of a joint product [3·H·D] by sums over φ(k) = elu(k) + 1."""
        dim, kind = self.widths[x] // 3, Kind.SUMS if causal else Kind.WHOLE_SUMS
        number = self.state(dim * (dim // heads + 1)) if causal else -1
        return self._add(kind, dim, x, number=number, heads=heads, width=dim // heads)

    def attend_memory(
        self, x: Register, heads: int, read: Callable[[Any], Keys], values: int | None = None, scale: float | None = None
    ) -> Register:
        """Attention of queries [H·D] to the next memory, with values of width `values` and scores times `scale`, 1/√D."""
        width = self.widths[x] // heads
        values, factor = values or width, 1 / math.sqrt(width) if scale is None else scale
        sizes = {"heads": heads, "width": width, "values": values, "value": factor}
        return self._add(Kind.CROSS, heads * values, x, number=self._memory(read), **sizes)

    def attend_additive(self, x: Register, score: Tensor, read: Callable[[Any], Keys], values: int) -> Register:
        """Attention of one head to the next memory, whose scores are `score`ᵀ tanh(x + k)."""
        sizes = {"heads": 1, "width": self.widths[x], "values": values}
        return self._add(Kind.ADDITIVE, values, x, number=self._memory(read), first=self._hold(score), **sizes)

    def attend_memory_sums(self, x: Register, heads: int, read: Callable[[Any], Keys], values: int) -> Register:
        """Attention of queries [H·D] to the sums k [G, H, D, values] of the next memory."""
        sizes = {"heads": heads, "width": self.widths[x] // heads, "values": values}
        return self._add(Kind.CROSS_SUMS, self.widths[x], x, number=self._memory(read), **sizes)

    def _product(self, native: NativeLinear, x: Register) -> Register:
        self.kept.append(native)
        return self._add(Kind.LINEAR, native.struct.outputs, x, layer=native.struct)

    def _memory(self, read: Callable[[Any], Keys]) -> int:
        if self.memory is not None:
            raise NotPlanned("an attention to the source other than plain heads")
        self.readers.append(read)
        return len(self.readers) - 1

    def _table(self, maker: Maker) -> int:
        self.tables.append(maker)
        return len(self.tables) - 1

    def _hold(self, tensor: Tensor) -> int:
        if tensor.dtype != torch.float32:
            raise NotPlanned(f"weights in {str(tensor.dtype).removeprefix('torch.')}")
        self.kept.append(tensor := tensor.detach().contiguous())
        return tensor.data_ptr()

    def _add(self, kind: int, size: int, x: Register | None = None, **fields: Any) -> Register:
        """Appends an operation whose result is a vector of this size, which is its `width` unless the fields say otherwise."""
        to = len(self.widths)
        self.widths.append(size)
        read = to if x is None else x
        self.ops.append(Op(kind, to, read, fields.pop("other", read), **{"width": size, **fields}))
        return to


def _overrides(kind: type, planned: type) -> bool:
    """Whether a class computes something differently than `planned`, its base class: it overrides a method."""
    return any(
        (callable(value) or isinstance(value, property | staticmethod | classmethod))
        and not name.startswith("__")
        and hasattr(planned, name)
        for name, value in vars(kind).items()
    )


class Inputs:
    """The inputs of one call: keys, tables by position, first states, ids and given vectors, which it keeps alive."""

    def __init__(
        self,
        tables: Sequence[Tensor],
        keys: Sequence[Keys] = (),
        states: Sequence[Tensor | None] = (),
        ids: Tensor | None = None,
        given: Tensor | None = None,
    ) -> None:
        self._held: list[object] = []
        memories = self._list(MemoryStruct, [self._memory(each) for each in keys])
        lists = (self._list(POINTER, [self.place(each) for each in tensors]) for tensors in (tables, states))
        self.struct = InputsStruct(memories, *lists, self.place(ids), self.place(given))

    def _list(self, kind: type[Any], values: list[Any]) -> int | None:
        """The address of an array."""
        if not values:
            return None
        array = (kind * len(values))(*values)
        self._held.append(array)
        return ctypes.addressof(array)

    def place(self, tensor: Tensor | None) -> int | None:
        """The address of a tensor, which is kept alive."""
        if tensor is None:
            return None
        tensor = tensor.contiguous()
        self._held.append(tensor)
        return tensor.data_ptr()

    def _memory(self, keys: Keys) -> MemoryStruct:
        return MemoryStruct(*map(self.place, (keys.k, keys.v, keys.bias, keys.gain)), keys.k.size(-2))


class Program:
    """A finished plan. `hidden` is the width of its result, which has `rate` rows for each token."""

    def __init__(self, draft: PlanBuilder) -> None:
        self._draft, self.hidden = draft, draft.widths[draft.ops[-1].to]
        ops = _fuse(draft.ops)
        rates = _rates(ops)
        self.rate = rates[ops[-1].to]
        widths = _share(ops, [width * rates.get(register, 1) for register, width in enumerate(draft.widths)])
        self._ops = (Op * len(ops))(*ops)
        self._numbers = [(INT * len(each))(*each) for each in (widths, draft.cells, draft.held)]
        self._tables: list[Tensor] = []
        arrays: list[ctypes.Array[Any]] = [self._ops, *self._numbers]
        places = [ctypes.cast(each, POINTER).value for each in arrays]
        sizes = len(self._ops), len(widths), len(draft.cells), len(draft.held)
        self.struct = ProgramStruct(*(each for pair in zip(places, sizes, strict=True) for each in pair))

    def open(self, decoder: nn.Module, source: Any) -> tuple[list[Keys], list[Tensor | None]]:
        """The keys that the program reads of encoded sources, and its first states; None: zeros."""
        opening, draft = self._draft.opening(decoder, source), self._draft
        states = [*opening.states, *[None] * (len(draft.held) - len(opening.states))]
        return [read(memory) for read, memory in zip(draft.readers, opening.memories, strict=True)], states

    def read(self, kernels: Kernels, source: Tensor, lengths: Tensor | None = None, keys: Sequence[Keys] = ()) -> Tensor:
        """Reads whole sequences: ids [B, S], or given vectors [B, S, D] → [B, S · rate, D], 0 behind the end of a sequence.

        lengths: [B] tokens of each sequence; None: S.
        """
        rows, extent = source.shape[:2]
        ids, given = (source, None) if source.dim() == 2 else (None, source)
        inputs = Inputs(self.tables(extent * self.rate), keys, given=given)
        sizes = torch.full((rows,), extent) if lengths is None else lengths
        output = torch.empty(rows, extent * self.rate, self.hidden)
        kernels.encode(
            ctypes.byref(self.struct), ctypes.byref(inputs.struct), inputs.place(ids), inputs.place(sizes), rows, extent,
            output.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return output

    def tables(self, length: int) -> list[Tensor]:
        """The tables of positions, with at least `length` rows."""
        if self._draft.tables and (not self._tables or len(self._tables[0]) < length):
            size = 1 << (length - 1).bit_length()
            self._tables = [make(max(size, 64)).float().contiguous() for make in self._draft.tables]
        return self._tables


def _fuse(ops: list[Op]) -> list[Op]:
    """Lets linear layers do the next operation themselves, if it is an addition or a ReLU and alone reads their result."""
    readers = Counter(register for op in ops for register in {op.source, op.other} - {op.to})
    fused: list[Op] = []
    for op in ops:
        adds = op.kind == Kind.ADD and op.source != op.other
        product = fused[-1] if fused and (adds or op.kind == Kind.RELU) else None
        if (
            product is None
            or product.kind != Kind.LINEAR
            or product.then
            or product.to not in (op.source, op.other)
            or readers[product.to] > 1
        ):
            fused.append(op)
            continue
        if adds:
            product.other, product.value = op.other if op.source == product.to else op.source, op.value
        product.then, product.to = op.kind, op.to
    return fused


def _rates(ops: list[Op]) -> dict[int, int]:
    """The rows per token of each register, which operations inherit from what they read."""
    rates: dict[int, int] = {}
    for op in ops:
        op.rate = rates[op.to] = op.heads if op.kind == Kind.SPREAD else rates.get(op.source, 1)
    return rates


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
