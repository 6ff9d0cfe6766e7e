"""Finished plans, as C++ runs them: operations that belong together are fused, and results share registers."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import Any

from torch import Tensor, nn

from weft.kernels.plan import Draft, Keys
from weft.kernels.structs import INT, POINTER, Kind, Op, ProgramStruct


class Program:
    """A finished plan. `hidden` is the width of its result."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self.hidden = draft, draft.widths[draft.ops[-1].to]
        ops = _fuse(draft.ops)
        widths = _share(ops, draft.widths)
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
