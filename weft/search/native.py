"""Searches that run in C++ from the first token to the last, with the plan of a decoder (`weft.kernels.plan`).

Python is called again every few steps, to stop rows that nobody waits for. What has no native counterpart (other choosers and
constraints, traces, decoders without a plan) uses the ordinary loop, with the same texts. The structs are those of
cpp/search.h. Shapes: G sources · K hypotheses per source · P prefix tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from weft.batch import EOS, PAD, Layout
from weft.kernels.cpp import Kernels, used
from weft.kernels.plan import (
    INT,
    POINTER,
    Draft,
    LinearStruct,
    MemoryStruct,
    NativeLinear,
    NotPlanned,
    Program,
    ProgramStruct,
    native_linear,
)
from weft.models.base import Decoder, LinearDecoder, NarrowedDecoder
from weft.search.choosers import Beam, Chooser, Greedy, Limits, Sample
from weft.search.constraints import Constraint, Forbid
from weft.search.tables import Tables

STOPS = {"exact": 0, "length": 1, "first": 2}
FLOAT = ctypes.c_float

UNWATCHED = 64
"""Steps that a search takes without returning to Python, if nobody can leave. A keyboard interrupt waits for them."""


class ChooserStruct(ctypes.Structure):
    _fields_ = (
        ("way", INT), ("keep", INT), ("stop", INT), ("penalty", FLOAT), ("offset", FLOAT),
        ("temperature", FLOAT), ("top_p", FLOAT), ("top_k", INT), ("seed", INT),
    )  # fmt: skip


class TaskStruct(ctypes.Structure):
    _fields_ = (
        ("program", ProgramStruct), ("memories", POINTER), ("tables", POINTER), ("ids", POINTER),
        ("output", LinearStruct), ("chooser", ChooserStruct),
        *((name, INT) for name in ("sources", "beams", "room", "prefix", "threads")),
        *((name, POINTER) for name in ("first", "first_lengths", "longest", "shortest", "sentences", "bias", "forbidden")),
        *((name, INT) for name in ("forbidden_count", "pad", "eos")),
        *((name, POINTER) for name in ("score", "best", "when", "parent", "token", "done", "tokens", "parents")),
    )  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """A planned decoder: its body, its output layer, and the ids [V] of a narrowed vocabulary."""

    program: Program
    output: NativeLinear
    ids: Tensor | None = None


_PLANS: WeakKeyDictionary[Decoder, tuple[object, Planned | NotPlanned]] = WeakKeyDictionary()


def planned(decoder: Decoder) -> Planned:
    """The plan of a decoder, made once for the present weights. Raises NotPlanned with the reason."""
    if isinstance(decoder, NarrowedDecoder):
        return Planned(planned(decoder.decoder).program, native_linear(decoder.output), decoder.ids)
    version = _version(decoder)
    known = _PLANS.get(decoder)
    if known is None or known[0] != version:
        known = _PLANS[decoder] = version, _plan(decoder)
    if isinstance(known[1], NotPlanned):
        raise known[1]
    return known[1]


def prepare(decoder: Decoder, warn: Callable[[str], None]) -> None:
    """Plans a decoder before workers are forked, so that they share the plan, or says that it has none."""
    try:
        planned(decoder)
    except NotPlanned as error:
        warn(f"decode.compile: {error} has no native plan, so decoding runs one operation at a time, with the same texts")


def _plan(decoder: Decoder) -> Planned | NotPlanned:
    draft = Draft()
    try:
        if not isinstance(decoder, LinearDecoder) or type(decoder).logits is not LinearDecoder.logits:
            raise NotPlanned(type(decoder).__name__)
        if decoder.training:
            raise NotPlanned("a model in training")
        draft.part(decoder)
        return Planned(Program(draft), native_linear(decoder.output))
    except NotPlanned as error:
        return error


def _version(decoder: Decoder) -> object:
    """A value that changes with the weights. Inference tensors have no version, but nothing trains them."""
    tensors = [*decoder.parameters(), *decoder.buffers()]
    return decoder.training, [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in tensors]


def _chooser(chooser: Chooser) -> ChooserStruct | None:
    if type(chooser) is Greedy:
        return ChooserStruct(0, 1, 0, chooser.penalty, chooser.offset)
    if type(chooser) is Beam:
        return ChooserStruct(1, chooser.keep, STOPS[chooser.stop], chooser.penalty, chooser.offset)
    if type(chooser) is Sample:
        options = chooser.temperature, chooser.top_p, chooser.top_k, chooser.seed
        return ChooserStruct(2, chooser.width, 0, 0.0, 0.0, *options)
    return None


def open_native(
    decoder: Decoder,
    source: Any,
    chooser: Chooser,
    constraints: Sequence[Constraint],
    limits: Limits,
    first: Tensor,
    layout: Layout | None,
) -> NativeSearch | None:
    """The search in C++; None if it has to use the ordinary loop."""
    how = _chooser(chooser)
    kernels = used(next(decoder.parameters(), first))
    plain = all(type(each) is Forbid for each in constraints) and limits.ending is None
    if kernels is None or how is None or not plain or torch.is_autocast_enabled("cpu"):
        return None
    try:
        plan = planned(decoder)
    except NotPlanned:
        return None
    if plan.output.struct.outputs < 2 * chooser.width:
        return None
    banned = [token for each in constraints if isinstance(each, Forbid) for token in each.tokens]
    return NativeSearch(kernels, plan, source, chooser, how, banned, limits, first, layout)


class NativeSearch:
    """A running search. Its tables are those of the ordinary loop."""

    def __init__(
        self,
        kernels: Kernels,
        plan: Planned,
        source: Any,
        chooser: Chooser,
        how: ChooserStruct,
        banned: Sequence[int],
        limits: Limits,
        first: Tensor,
        layout: Layout | None,
    ) -> None:
        self._held: list[object] = [plan]
        sources, prefix, device = first.size(0), first.size(1), first.device
        steps = int(limits.longest.max())
        self.tables = Tables.empty(steps, chooser.start(sources, device), False)
        found, room = self.tables.found, prefix + steps
        self._longest = limits.longest.contiguous()
        memories = (MemoryStruct * max(plan.program.memories, 1))(*map(self._memory, plan.program.read(source)))
        positions = [each.data_ptr() for each in plan.program.tables(room)]
        tables = (POINTER * max(len(positions), 1))(*positions)
        forbidden = torch.tensor(banned, dtype=torch.long)
        lengths = torch.full((sources,), prefix) if layout is None else layout.lengths.long()
        self._held += [memories, tables]
        task = TaskStruct(
            plan.program.struct, ctypes.cast(memories, POINTER), ctypes.cast(tables, POINTER), self._place(plan.ids),
            plan.output.struct, how, sources, chooser.width, room, prefix, torch.get_num_threads(),
            *map(self._place, (first, lengths, self._longest, limits.shortest, limits.ids, limits.bias, forbidden)),
            len(forbidden), PAD, EOS,
            *map(self._place, (found.score, found.best, found.when, found.parent, found.token, found.done)),
            self._place(self.tables.tokens), self._place(self.tables.parents),
        )  # fmt: skip
        self._kernels, self._search = kernels, kernels.open_search(ctypes.byref(task))

    def _memory(self, memory: Any) -> MemoryStruct:
        """The keys and values of a source, with a bias that hides padding."""
        bias = memory.bias
        if bias is None and memory.segments is not None:
            bias = torch.where(memory.segments > 0, 0.0, float("-inf"))
        return MemoryStruct(*map(self._place, (memory.k, memory.v, bias)), memory.k.size(2))

    def _place(self, tensor: Tensor | None) -> int | None:
        """The address of a tensor, which is kept alive."""
        if tensor is None:
            return None
        tensor = tensor.contiguous()
        self._held.append(tensor)
        return tensor.data_ptr()

    def finish(self, check: int, stop: Callable[[Tensor, Tensor], None] | None) -> Tables:
        """Runs to the end, once. Every `check` steps `stop` may end sources (see `Control.stop_unwanted`)."""
        owner = torch.arange(self._longest.numel())
        try:
            while self._kernels.run_search(self._search, UNWATCHED if stop is None else check):
                if stop is not None:
                    stop(owner, self._longest)
        finally:
            self._kernels.close_search(self._search)
        return self.tables
