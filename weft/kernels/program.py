"""Finished plans, as C++ runs them: operations that belong together are fused, and results share registers."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.kernels.cpp import Kernels
from weft.kernels.plan import Draft, Keys
from weft.kernels.structs import INT, POINTER, InputsStruct, Kind, MemoryStruct, Op, ProgramStruct


class Inputs:
    """What a program reads in one call: keys, tables by position, first states, ids and given vectors, which it keeps alive."""

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

    def __init__(self, draft: Draft) -> None:
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
        found = torch.empty(rows, extent * self.rate, self.hidden)
        kernels.encode(
            ctypes.byref(self.struct), ctypes.byref(inputs.struct), inputs.place(ids), inputs.place(sizes), rows, extent,
            found.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return found

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
    """How many rows per token each register has, which operations inherit from what they read."""
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
