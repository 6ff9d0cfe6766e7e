"""The search loop, the same for every decoder, selector and constraint.

Shapes: G sources · K hypotheses per source · V vocabulary · P prefix tokens · T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from weft.data.batch import EOS, Layout, power_of_two
from weft.decoding.cpp_search import open_cpp_search
from weft.decoding.hypotheses import BackpointerTables, Hypothesis, backtrace
from weft.decoding.ngram_blocking_and_rules import Constraint
from weft.decoding.token_selection import NEVER, LengthLimits, Selection, SelectorState, TokenSelector
from weft.layers.decoder_state import State, clone, grow, select
from weft.layers.kernels.cpp import used
from weft.models.base import Decoder

if TYPE_CHECKING:
    from weft.decoding.lexical_constraints import TermAutomata

T = TypeVar("T")

ROOM = 16
"""Stores grow by this many tokens on a CPU. They double on a GPU, where every size needs its own graph."""

TABLES = 256
"""On a GPU tables hold at least this many tokens, since every size needs its own graph."""

CHECK = 4
"""Steps between the checks which sources are done."""

FEWEST = 32
"""On a GPU a batch never shrinks below this many sources: a step would not be faster."""


@dataclass
class ActiveHypotheses:
    """The running sources: owner [G] are their numbers in the batch; state and constraints have G·K rows.

    tokens [G·K, T]: fed last, with their layout if they were a ragged prefix · hidden [G·K, D]: the decoder's output for them ·
    t: the number of the step, a scalar on the device, or [G, 1] if sources have begun at different times.
    """

    owner: Tensor
    selector_state: SelectorState
    limits: LengthLimits
    state: State
    constraint_states: list[State]
    tokens: Tensor
    hidden: Tensor
    t: Tensor
    tables: BackpointerTables
    layout: Layout | None = None

    def take(self, rows: Tensor, groups: Tensor | None = None) -> None:
        """Reorders, repeats or drops the rows of the state and the constraints."""
        self.state, self.constraint_states = select(self.state, rows, groups), select(self.constraint_states, rows, groups)

    def keep_rows(self, staying: Tensor) -> ActiveHypotheses:
        """The search with only the sources in `staying`; the results of the others are archived."""
        self.tables.archive(self.owner, self.selector_state)
        width = self.tokens.size(0) // self.owner.numel()
        rows = (staying[:, None] * width + torch.arange(width, device=staying.device)).flatten()
        return replace(
            self,
            owner=self.owner[staying],
            selector_state=select(self.selector_state, staying),
            limits=select(self.limits, staying),
            state=select(self.state, rows, staying),
            constraint_states=select(self.constraint_states, rows, staying),
            tokens=self.tokens[rows],
            hidden=self.hidden[rows],
        )


@dataclass
class SearchInput:
    """The start of a search: the encoded source, and `prefix` [G, P], BOS and any forced tokens."""

    source: Any
    prefix: Tensor
    layout: Layout | None
    limits: LengthLimits


@dataclass(frozen=True)
class SearchStep:
    """One step of a search: the same operations every time, none of which depends on a number on the host."""

    decoder: Decoder
    selector: TokenSelector
    constraints: Sequence[Constraint]

    def open(self, start: SearchInput, room: int, length: int, trace: bool) -> ActiveHypotheses:
        """The search before its first choice, with stores for `room` tokens and tables for texts of `length` tokens."""
        sources, device = start.prefix.size(0), start.prefix.device
        fed = self.decoder.hidden_states(start.prefix, self.decoder.init_state(start.source, room=room), start.layout)
        selector_state = self.selector.init_state(sources, device)
        last = fed.hidden[:, -1]
        if start.layout is not None:
            last = fed.hidden[torch.arange(sources, device=device), (start.layout.lengths - 1).clamp_min(0)]
        return ActiveHypotheses(
            owner=torch.arange(sources, device=device),
            selector_state=selector_state,
            limits=start.limits,
            state=fed.state,
            constraint_states=[constraint.init_state(sources, device) for constraint in self.constraints],
            tokens=start.prefix,
            hidden=last,
            t=torch.zeros((), dtype=torch.long, device=device),
            tables=BackpointerTables.empty(length, selector_state, trace),
            layout=start.layout,
        )

    def __call__(self, now: ActiveHypotheses) -> ActiveHypotheses:
        """Chooses the next token of every hypothesis and feeds it to the decoder."""
        selection = self.choose(now)
        groups, width = selection.tokens.shape
        if selection.parents is not None and width > 1:
            row = torch.arange(groups, device=now.owner.device)[:, None] * width
            now.take((selection.parents + row).flatten())
        now.tokens, now.layout = selection.tokens.reshape(-1, 1), None
        fed = self.decoder.hidden_states(now.tokens, now.state)
        now.hidden, now.state, now.t = fed.hidden[:, -1], fed.state, now.t + 1
        return now

    def choose(self, now: ActiveHypotheses) -> Selection:
        """Applies the constraints, then the selector. A source has one row until the first choice, and then K."""
        logits = self.decoder.logits(now.hidden)
        if now.limits.bias is not None:
            logits.unflatten(0, (now.owner.numel(), -1)).add_(now.limits.bias[:, None])
        norm = torch.zeros_like(logits[:, 0]) if self.decoder.scores else _norm(logits)
        # No EOS before the least length of a text.
        early = (now.t.flatten() < now.limits.min_tokens)[:, None].expand(-1, logits.size(0) // now.limits.min_tokens.numel())
        logits[:, EOS].masked_fill_(early.reshape(-1), NEVER)
        for j, constraint in enumerate(self.constraints):
            logits, now.constraint_states[j] = constraint(logits, now.tokens, now.constraint_states[j], now.layout)
        groups, width = now.owner.numel(), self.selector.width
        if logits.size(0) < groups * width:
            now.take(torch.arange(groups, device=logits.device).repeat_interleave(width))
            logits, norm = logits.repeat_interleave(width, 0), norm.repeat_interleave(width, 0)
        limits, ending = now.limits, self.decoder.ending(now.state)
        if ending is not None:
            limits = replace(limits, ending=ending.view(groups, width))
        selection = self.selector.step(
            logits.view(groups, width, -1), norm.view(groups, width), now.selector_state, now.t, limits
        )
        now.selector_state = selection.selector_state
        now.tables.write(now.t, now.owner, selection)
        return selection


class StepRunner:
    """Runs the parts of a search: here eagerly; `CapturedStepRunner` captures them once per size and replays them."""

    def opening(self, key: Hashable, work: Callable[[Any], T], inputs: Any) -> T:
        """The result of `work(inputs)`; equal keys mean equal work."""
        return work(inputs)

    def step(self, step: SearchStep, now: ActiveHypotheses) -> ActiveHypotheses:
        return step(now)

    def holds(self, now: ActiveHypotheses) -> bool:
        """Whether no other search has written over the tensors of this one since its last step."""
        return True

    def change(
        self, key: Hashable, work: Callable[[ActiveHypotheses, Tensor], None], now: ActiveHypotheses, given: Tensor
    ) -> None:
        """Does `work(now, given)`, which changes the tensors of a search in place."""
        mine = clone(now)  # tensors of a search may share memory
        for part in fields(now):
            setattr(now, part.name, getattr(mine, part.name))
        work(now, given)


EAGER = StepRunner()


class Cancellation:
    """Stops the rows of a batch that nobody waits for any more: those for which `wanted(row)` is false.

    The search loop checks every few steps, never inside a step, so that a recorded step stays the same. The text of a stopped
    row is cut off: do not show it, and do not cache it. `between` is called before each check.
    """

    def __init__(self, rows: int, wanted: Callable[[int], bool], between: Callable[[], None] = lambda: None) -> None:
        self.rows, self.wanted, self.between = rows, wanted, between
        self.stopped: set[int] = set()

    def gone(self) -> list[int]:
        """The rows that became unwanted since the last call."""
        gone = [row for row in range(self.rows) if row not in self.stopped and not self.wanted(row)]
        self.stopped.update(gone)
        return gone

    def stop_unwanted(self, owner: Tensor, max_tokens: Tensor) -> None:
        """Sets the most tokens of unwanted rows to 0, in place, so that every selector ends them at the next step.

        owner [G]: the number of each running source in the batch · max_tokens [G]: the limit of each.
        """
        self.between()
        if gone := self.gone():
            max_tokens.masked_fill_(torch.isin(owner, torch.tensor(gone, device=owner.device)), 0)


@dataclass(frozen=True)
class SearchRequest:
    """The order to search texts for some encoded sources.

    prefix [G, P]: BOS and any forced tokens, which are not part of the result, with their layout if they are ragged · limits:
    of the texts · n_best: texts per source; None: all that the search finds · constraints: on every text · required: terms
    that texts must contain · selector: replaces the one of the search method · runner: runs the steps · check: steps between
    the checks which sources are done · trace: keep the beam tree, or all passes · cancellation: stops sources that nobody
    waits for.
    """

    prefix: Tensor
    limits: LengthLimits
    prefix_layout: Layout | None = None
    n_best: int | None = None
    constraints: Sequence[Constraint] = ()
    required: TermAutomata | None = None
    selector: TokenSelector | None = None
    runner: StepRunner = EAGER
    check: int = CHECK
    trace: bool = False
    cancellation: Cancellation | None = None


@torch.inference_mode()
def run_search(
    decoder: Decoder, source: Any, selector: TokenSelector, request: SearchRequest
) -> tuple[list[list[Hypothesis]], BackpointerTables]:
    """Finds texts for each source, best first.

    Nothing inside the loop waits for the device, except for the check which sources are done. When half of them are, their
    rows are dropped.
    """
    runner, trace, limits, cancellation = request.runner, request.trace, request.limits, request.cancellation
    if runner is EAGER and not trace:
        native = open_cpp_search(decoder, source, selector, request)
        if native is not None:
            tables = native.finish(request.check, None if cancellation is None else cancellation.stop_unwanted)
            return backtrace(tables, request.n_best), tables
    prefix, device, steps = request.prefix.size(1), request.prefix.device, int(limits.max_tokens.max())
    step, room = SearchStep(decoder, selector, request.constraints), _room(prefix + 1, 0, device)
    length = _room(steps, TABLES, device)

    def begin(start: SearchInput) -> ActiveHypotheses:
        opened = step.open(start, room, length, trace)
        return step(opened) if steps > 1 else opened

    start = SearchInput(source, request.prefix, request.prefix_layout, limits)
    now = runner.opening((room, length, trace, steps > 1), begin, start)
    counter = ActiveCounter(device, request.check)
    for i in range(1, steps):
        if i > 1:
            now = runner.step(step, now)
        if cancellation is not None and i % request.check == 0:
            cancellation.stop_unwanted(now.owner, now.limits.max_tokens)
        alive = counter(i, now.selector_state.done)
        if alive == 0:
            break
        if alive is not None:
            now = _without(now, alive)
        if prefix + i + 1 > room and i + 1 < steps:
            room = _room(prefix + i + 1, room, device)
            now = replace(now, state=grow(now.state, room), constraint_states=grow(now.constraint_states, room))
    else:
        step.choose(now)
    now.tables.archive(now.owner, now.selector_state)
    return backtrace(now.tables, request.n_best), now.tables


class ActiveCounter:
    """Counts the running sources every `check` steps.

    A GPU copies the count after one step and the host reads it after the next, so that the GPU never waits.
    """

    def __init__(self, device: torch.device, check: int) -> None:
        self.check, self.late = check, device.type == "cuda" and check > 1
        self._count = torch.zeros((), dtype=torch.long, pin_memory=True) if self.late else None
        self._copied = torch.cuda.Event() if self.late else None

    def __call__(self, i: int, done: Tensor) -> int | None:
        """The number of running sources, if it is known after step i."""
        if self._count is None or self._copied is None:
            return int((~done).sum()) if i % self.check == 0 else None
        if i % self.check == 0:
            self._count.copy_((~done).sum(), non_blocking=True)
            self._copied.record()
        if i % self.check != 1 or i == 1:
            return None
        self._copied.synchronize()
        return int(self._count)


def _without(now: ActiveHypotheses, alive: int) -> ActiveHypotheses:
    """The search without finished sources, if at most half are running; `alive`: the most that may be."""
    cuda = now.owner.device.type == "cuda"
    # On a GPU searches come in few sizes: some finished sources stay to make up a power of two.
    count = max(power_of_two(alive), FEWEST) if cuda else alive
    if count > now.owner.numel() // 2:
        return now
    return now.keep_rows(now.selector_state.done.byte().argsort(stable=True)[:count])


def _norm(logits: Tensor) -> Tensor:
    """logsumexp [B] in float32 of logits [B, V], in one pass: log-softmax subtracts it from every logit, EOS included."""
    native = used(logits)
    if native is not None:
        return native.log_sum(logits)
    logp = logits.log_softmax(-1, dtype=torch.float32)
    return logits[:, EOS].float() - logp[:, EOS]


def _room(needed: int, room: int, device: torch.device) -> int:
    if device.type == "cuda":
        room = max(room, 2 * ROOM)
        while room < needed:
            room *= 2
        return room
    return -(-needed // ROOM) * ROOM
