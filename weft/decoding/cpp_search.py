"""Encoding and searches that run in C++, with the plans of encoder and decoder (`weft.layers.kernels.cpp_plan`).

Python is called again every few steps, to stop rows that nobody waits for. What has no native counterpart (other selectors
and constraints, traces, decoders without a plan) uses the ordinary loop. In float32 it finds the same texts, unless two
scores differ by no more than their rounding. In int8, where sums in another order can round a value to the next step, single
texts may differ. The structs are those of cpp/search.h. Shapes: G sources · K hypotheses per source · P prefix tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from weft.data.batch import EOS, PAD, Layout, Source
from weft.decoding.hypotheses import BackpointerTables
from weft.decoding.ngram_blocking_and_rules import ForbidTokens
from weft.decoding.token_selection import CppSelector, TokenSelector
from weft.layers.decoder_state import State
from weft.layers.kernels.cpp import INT, POINTER, Kernels, active, used
from weft.layers.kernels.cpp_plan import (
    Inputs,
    InputsStruct,
    Keys,
    LinearStruct,
    NativeLinear,
    NotPlanned,
    PlanBuilder,
    Program,
    ProgramStruct,
    native_linear,
)
from weft.models.base import Decoder, Encoded, LinearDecoder, Model
from weft.models.ensembles_and_wrapped_decoders import ShortlistDecoder
from weft.models.nonautoregressive import NonAutoregressiveDecoder

if TYPE_CHECKING:
    from weft.decoding.search_loop import SearchRequest

Part = TypeVar("Part", bound=nn.Module)

FLOAT = ctypes.c_float
VERSION = attrgetter("_version")

UNWATCHED = 64
"""Steps that a search takes without returning to Python, if nobody can leave. A keyboard interrupt waits for them."""


class SelectorStruct(ctypes.Structure):
    _fields_ = (
        ("method", INT), ("keep", INT), ("stop", INT), ("penalty", FLOAT), ("offset", FLOAT),
        ("temperature", FLOAT), ("top_p", FLOAT), ("top_k", INT), ("seed", INT),
    )  # fmt: skip


class TaskStruct(ctypes.Structure):
    _fields_ = (
        ("program", ProgramStruct), ("inputs", InputsStruct), ("output", LinearStruct), ("selector", SelectorStruct),
        *((name, INT) for name in ("sources", "beams", "room", "prefix", "threads")),
        *((name, POINTER) for name in ("first", "prefix_lengths", "max_tokens", "min_tokens", "sentences", "bias")),
        ("forbidden", POINTER),
        *((name, INT) for name in ("forbidden_count", "pad", "eos")),
        *((name, POINTER) for name in ("score", "best", "when", "parent", "token", "done", "tokens", "parents")),
    )  # fmt: skip


class Weights:
    """The weights of a module at one time. Comparing them does not walk the tree of modules, which takes half a millisecond.

    Every search compares them, so no loop over them is in Python. Of the module itself only its tables are held, so that a plan
    does not keep it alive.
    """

    def __init__(self, module: nn.Module) -> None:
        parts, self._training = list(module.modules()), module.training
        self._tables: list[dict[str, Any]] = [
            table for part in parts for table in (part._modules, part._parameters, part._buffers) if table
        ]
        self._values = self._listed()
        self._tensors = [value for value in self._values if isinstance(value, Tensor)]
        # Inference tensors have no version, but nothing trains them.
        self._trained = [each for each in self._tensors if not each.is_inference()]
        self._versions = self._look()

    def current(self, module: nn.Module) -> bool:
        """Whether nothing was replaced, and no weight was changed in place."""
        values = self._listed()
        same = len(values) == len(self._values) and all(map(is_, values, self._values))
        return same and module.training == self._training and self._look() == self._versions

    def _listed(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._tables)))

    def _look(self) -> list[int]:
        return [*map(Tensor.data_ptr, self._tensors), *map(VERSION, self._trained)]


@dataclass(frozen=True)
class PlannedDecoder:
    """A planned decoder: its body, its output layer, and the ids [V] of a narrowed vocabulary."""

    program: Program
    output: NativeLinear
    ids: Tensor | None = None


_PLANS: WeakKeyDictionary[nn.Module, tuple[Weights, Any]] = WeakKeyDictionary()


def plan_decoder(decoder: Decoder) -> PlannedDecoder:
    """The plan of a decoder, made once for the present weights. Raises NotPlanned with the reason."""
    if isinstance(decoder, ShortlistDecoder):
        return PlannedDecoder(plan_decoder(decoder.decoder).program, native_linear(decoder.output), decoder.ids)
    plan: PlannedDecoder = _made_once(decoder, _plan)
    return plan


def prepare(decoder: Decoder, warn: Callable[[str], None]) -> None:
    """Plans a decoder before workers are forked, so that they share the plan, or says that it has none."""
    try:
        plan_decoder(decoder)
    except NotPlanned as error:
        warn(f"decode.compile: no native plan for {error}, so decoding runs one operation at a time, more slowly")


def _plan(decoder: Decoder) -> PlannedDecoder:
    if not isinstance(decoder, LinearDecoder) or type(decoder).logits is not LinearDecoder.logits:
        raise NotPlanned(type(decoder).__name__)
    return PlannedDecoder(_program(decoder), native_linear(decoder.output))


def _program(module: nn.Module) -> Program:
    if module.training:
        raise NotPlanned("a model in training")
    draft = PlanBuilder()
    draft.part(module)
    return Program(draft)


def _made_once(module: Part, make: Callable[[Part], Any]) -> Any:
    """The result of `make`, which is made again when the weights change. What cannot be planned raises NotPlanned each time."""
    known = _PLANS.get(module)
    if known is None or not known[0].current(module):
        weights = Weights(module)
        try:
            known = weights, make(module)
        except NotPlanned as error:
            known = weights, error.with_traceback(None)
        _PLANS[module] = known
    if isinstance(known[1], NotPlanned):
        raise known[1]
    return known[1]


def _ready(device: torch.device, plan: Callable[[], Any]) -> tuple[Kernels, Any] | None:
    """The kernels and a plan, if the kernels are in use and there is a plan, which other weights than float32 do not have."""
    kernels = active(device)
    if kernels is None or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return None
    try:
        return kernels, plan()
    except NotPlanned:
        return None


def encode(model: Model, source: Source) -> Encoded:
    """The encoded source: in C++ if the encoder has a plan and the kernels are in use, otherwise by `Model.encode`."""
    layout, values = source.layout, source.values
    tokens = values.dtype == torch.long and not (layout is not None and layout.packed) and values.numel() > 0
    ready = _ready(values.device, lambda: _made_once(model.encoder, _program)) if tokens else None
    if ready is None:
        return model.encode(source)
    kernels, program = ready
    memory = program.read(kernels, values, None if layout is None else layout.lengths)
    return Encoded(memory, layout, layers=[memory])


def nonautoregressive_states(decoder: NonAutoregressiveDecoder, tokens: Tensor, state: State, layout: Layout) -> Tensor:
    """The hidden states [B, T, D] of a decoder that writes all tokens at once: in C++ if it has a plan, as in `encode`."""
    ready = _ready(tokens.device, lambda: plan_decoder(decoder).program)
    if ready is None:
        return decoder.hidden_states(tokens, state, layout).hidden
    kernels, program = ready
    keys, _ = program.open(decoder, state)
    return program.read(kernels, decoder.embed(tokens, state, layout), layout.lengths, keys)


def path_states(decoder: NonAutoregressiveDecoder, source: Encoded) -> tuple[Tensor, Tensor]:
    """The hidden states [G, T, D] on canvases that hold paths, and the lengths [G] of the paths: in C++ as in `encode`."""
    ready = _ready(source.memory.device, lambda: plan_decoder(decoder).program)
    if ready is None:
        canvas = decoder.canvases.known(source, torch.empty(0), 0)
        blanks = torch.full_like(canvas.layout.positions, decoder.blank)
        return decoder.hidden_states(blanks, decoder.open(source, canvas), canvas.layout).hidden, canvas.layout.lengths
    kernels, program = ready
    return _read_memory(kernels, program, source)


def _read_memory(kernels: Kernels, program: Program, source: Encoded) -> tuple[Tensor, Tensor]:
    return program.read(kernels, source.memory, source.lengths), source.lengths * program.rate


def cpp_ctc_paths(decoder: NonAutoregressiveDecoder, source: Encoded, barred: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """The most probable symbols [G, T] of paths, not below `barred`, their log-probabilities [G] and their lengths [G].

    None if they are not computed in C++.
    """
    ready = _ready(source.memory.device, lambda: plan_decoder(decoder))
    if ready is None:
        return None
    kernels, plan = ready
    hidden, lengths = _read_memory(kernels, plan.program, source)
    logp, path = kernels.most_probable(plan.output.struct, hidden, lengths, barred)
    return path, logp.sum(1), lengths


def open_cpp_search(decoder: Decoder, source: Any, selector: TokenSelector, request: SearchRequest) -> CppSearch | None:
    """The search in C++; None if it has to use the ordinary loop."""
    how, limits, prefix = selector.in_cpp(), request.limits, request.prefix
    kernels = used(next(decoder.parameters(), prefix))
    plain = all(type(each) is ForbidTokens for each in request.constraints) and limits.ending is None
    plain = plain and all(each.dtype == torch.long for each in (prefix, limits.max_tokens, limits.min_tokens, limits.ids))
    if kernels is None or how is None or not plain or torch.is_autocast_enabled("cpu"):
        return None
    try:
        plan = plan_decoder(decoder)
    except NotPlanned:
        return None
    if plan.output.struct.outputs < 2 * selector.width:
        return None
    body = decoder.decoder if isinstance(decoder, ShortlistDecoder) else decoder
    return CppSearch(kernels, plan, plan.program.open(body, source), selector, how, request)


class CppSearch:
    """A running search. Its tables are those of the ordinary loop."""

    def __init__(
        self,
        kernels: Kernels,
        plan: PlannedDecoder,
        opened: tuple[list[Keys], list[Tensor | None]],
        selector: TokenSelector,
        how: CppSelector,
        request: SearchRequest,
    ) -> None:
        prefix, layout, limits = request.prefix, request.prefix_layout, request.limits
        (sources, fed), device = prefix.shape, prefix.device
        banned = [token for each in request.constraints if isinstance(each, ForbidTokens) for token in each.tokens]
        steps = int(limits.max_tokens.max())
        self.tables = BackpointerTables.empty(steps, selector.init_state(sources, device), False)
        selected, room = self.tables.selector_state, fed + steps
        self._max_tokens = limits.max_tokens.contiguous()
        forbidden = torch.tensor(banned, dtype=torch.long)
        lengths = torch.full((sources,), fed) if layout is None else layout.lengths.long()
        self._plan, self._inputs = plan, Inputs(plan.program.tables(room), *opened, plan.ids)
        place = self._inputs.place
        task = TaskStruct(
            plan.program.struct, self._inputs.struct, plan.output.struct, SelectorStruct(*how),
            sources, selector.width, room, fed, torch.get_num_threads(),
            *map(place, (prefix, lengths, self._max_tokens, limits.min_tokens, limits.ids, limits.bias, forbidden)),
            len(forbidden), PAD, EOS,
            *map(place, (selected.score, selected.best, selected.when, selected.parent, selected.token, selected.done)),
            place(self.tables.tokens), place(self.tables.parents),
        )  # fmt: skip
        self._kernels, self._search = kernels, kernels.open_search(ctypes.byref(task))

    def finish(self, check: int, stop: Callable[[Tensor, Tensor], None] | None) -> BackpointerTables:
        """Runs to the end, once. Every `check` steps `stop` may end sources (see `Cancellation.stop_unwanted`)."""
        owner = torch.arange(self._max_tokens.numel())
        try:
            while self._kernels.run_search(self._search, UNWATCHED if stop is None else check):
                if stop is not None:
                    stop(owner, self._max_tokens)
        finally:
            self._kernels.close_search(self._search)
        return self.tables
