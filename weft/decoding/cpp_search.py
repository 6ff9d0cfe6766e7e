"""Encoding and searches that run in C++, with the plans of encoder and decoder (`weft.layers.kernels.cpp_plan`).

Python is called again every few steps, to stop rows that nobody waits for. What has no native counterpart (other selectors
and constraints, traces, decoders without a plan) uses the ordinary loop. In float32 it finds the same texts, unless two
scores differ by no more than their rounding. In int8, where sums in another order can round a value to the next step, single
texts may differ. The structs are those of cpp/search.h. Shapes: G sources · K hypotheses per source · P prefix tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from weft.data.batch import EOS, PAD, Layout, Source
from weft.decoding.hypotheses import BackpointerTables
from weft.decoding.ngram_blocking_and_rules import Constraint, ForbidTokens
from weft.decoding.token_selection import CppSelector, LengthLimits, TokenSelector
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

Opened = tuple[list[Keys], list[Tensor | None]]
"""The keys that a plan reads of encoded sources, and its first states."""

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


@dataclass(frozen=True)
class CppMethod:
    """The parts of a search that runs in C++: the plan of its decoder, its selector, and the tokens that it never writes."""

    kernels: Kernels
    plan: PlannedDecoder
    decoder: Decoder
    selector: TokenSelector
    options: CppSelector
    banned: Sequence[int]

    def read(self, source: Any) -> Opened:
        """The parts of encoded sources that the plan reads."""
        return self.plan.program.open(self.decoder, source)


def cpp_method(decoder: Decoder, selector: TokenSelector, constraints: Sequence[Constraint]) -> CppMethod | None:
    """The parts of a search in C++; None if it has to use the ordinary loop."""
    options, kernels = selector.in_cpp(), used(next(decoder.parameters(), torch.empty(0)))
    plain = all(type(each) is ForbidTokens for each in constraints)
    if kernels is None or options is None or not plain or torch.is_autocast_enabled("cpu"):
        return None
    try:
        plan = plan_decoder(decoder)
    except NotPlanned:
        return None
    if plan.output.struct.outputs < 2 * selector.width:
        return None
    body = decoder.decoder if isinstance(decoder, ShortlistDecoder) else decoder
    banned = [token for each in constraints if isinstance(each, ForbidTokens) for token in each.tokens]
    return CppMethod(kernels, plan, body, selector, options, banned)


def open_cpp_search(decoder: Decoder, source: Any, selector: TokenSelector, request: SearchRequest) -> CppSearch | None:
    """The search in C++ with all sources; None if it has to use the ordinary loop."""
    prefix, layout, limits = request.prefix, request.prefix_layout, request.limits
    longs = all(each.dtype == torch.long for each in (prefix, limits.max_tokens, limits.min_tokens, limits.ids))
    method = cpp_method(decoder, selector, request.constraints) if longs and limits.ending is None else None
    if method is None:
        return None
    (sources, fed), steps = prefix.shape, int(limits.max_tokens.max())
    search = CppSearch(method, sources, fed, steps, limits.bias)
    lengths = torch.full((sources,), fed) if layout is None else layout.lengths
    search.admit(torch.arange(sources), method.read(source), prefix, lengths, limits)
    return search


class CppSearch:
    """A search with places for sources, each of which starts when it is admitted. Its tables are those of the ordinary loop.

    sources: number of places · prefix, steps: the most tokens of a prefix, and of a text · bias [G, V]: added to the logits ·
    limits: of the source in each place.
    """

    def __init__(self, method: CppMethod, sources: int, prefix: int, steps: int, bias: Tensor | None = None) -> None:
        plan, selector, kernels = method.plan, method.selector, method.kernels
        none = torch.zeros(sources, dtype=torch.long)
        self.limits = LengthLimits(none, none.clone(), none.clone())
        self.tables = BackpointerTables.empty(steps, selector.init_state(sources, none.device), False)
        self._method, self._prefix, self._lengths = method, torch.zeros(sources, prefix, dtype=torch.long), none.clone()
        self._held: list[object] = [None] * sources
        selected, room = self.tables.selector_state, prefix + steps
        selected.done.fill_(True)
        self._inputs = Inputs(plan.program.tables(room), ids=plan.ids)
        place, limits = self._inputs.place, self.limits
        task = TaskStruct(
            plan.program.struct, self._inputs.struct, plan.output.struct, SelectorStruct(*method.options),
            sources, selector.width, room, prefix, torch.get_num_threads(),
            *map(place, (self._prefix, self._lengths, limits.max_tokens, limits.min_tokens, limits.ids, bias)),
            place(torch.tensor(method.banned, dtype=torch.long)), len(method.banned), PAD, EOS,
            *map(place, (selected.score, selected.best, selected.when, selected.parent, selected.token, selected.done)),
            place(self.tables.tokens), place(self.tables.parents),
        )  # fmt: skip
        self._search = kernels.open_search(ctypes.byref(task))

    def admit(self, places: Tensor, opened: Opened, prefix: Tensor, lengths: Tensor, limits: LengthLimits) -> None:
        """Starts sources in these places [N]: prefix [N, P] with its lengths [N], and their limits."""
        given = Inputs((), *opened)
        self._prefix[places, : prefix.size(1)] = prefix
        self._lengths[places] = lengths.long()
        for name in ("max_tokens", "min_tokens", "ids"):
            getattr(self.limits, name)[places] = getattr(limits, name)
        fresh, state = self._method.selector.init_state(len(places), places.device), self.tables.selector_state
        for part in fields(fresh):
            getattr(state, part.name)[places] = getattr(fresh, part.name)
        for number in places.tolist():
            self._held[number] = given
        self._method.kernels.admit_sources(self._search, ctypes.byref(given.struct), places.data_ptr(), len(places))

    def run(self, steps: int) -> int:
        """Makes up to `steps` steps. Returns the number of sources that are not done."""
        alive: int = self._method.kernels.run_search(self._search, steps)
        return alive

    def finish(self, check: int, stop: Callable[[Tensor, Tensor], None] | None) -> BackpointerTables:
        """Runs to the end, once. Every `check` steps `stop` may end sources (see `Cancellation.stop_unwanted`)."""
        owner = torch.arange(len(self._held))
        try:
            while self.run(UNWATCHED if stop is None else check):
                if stop is not None:
                    stop(owner, self.limits.max_tokens)
        finally:
            self.close()
        return self.tables

    def close(self) -> None:
        """Frees the memory of the search, once."""
        self._method.kernels.close_search(self._search)
        self._held.clear()
