"""The search loop, the same for every decoder, chooser and constraint.

Shapes: G sources · K hypotheses per source · V vocabulary · P prefix tokens · T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from weft.data.batch import EOS, Layout, power_of_two
from weft.decoding.constraints import Constraint
from weft.decoding.coverage_penalty import CoverageState
from weft.decoding.cpp_search import open_cpp_search
from weft.decoding.hypotheses import BackpointerTables, Hypothesis, backtrace
from weft.decoding.token_selection import NEVER, LengthLimits, Selection, SelectorState, TokenSelector
from weft.layers.decoder_state import State, grow, select
from weft.layers.kernels.cpp import used
from weft.models.base import Decoder

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
    t: the number of the step, a scalar on the device.
    """

    owner: Tensor
    found: SelectorState
    limits: LengthLimits
    state: State
    noted: list[State]
    tokens: Tensor
    hidden: Tensor
    t: Tensor
    tables: BackpointerTables
    layout: Layout | None = None

    def take(self, rows: Tensor, groups: Tensor | None = None) -> None:
        """Reorders, repeats or drops the rows of the state and the constraints."""
        self.state, self.noted = select(self.state, rows, groups), select(self.noted, rows, groups)

    def leave(self, staying: Tensor) -> ActiveHypotheses:
        """The search with only the sources in `staying`; the results of the others are archived."""
        self.tables.archive(self.owner, self.found)
        width = self.tokens.size(0) // self.owner.numel()
        rows = (staying[:, None] * width + torch.arange(width, device=staying.device)).flatten()
        return replace(
            self,
            owner=self.owner[staying],
            found=select(self.found, staying),
            limits=select(self.limits, staying),
            state=select(self.state, rows, staying),
            noted=select(self.noted, rows, staying),
            tokens=self.tokens[rows],
            hidden=self.hidden[rows],
        )


@dataclass
class SearchInput:
    """The start of a search: the encoded source, and `first` [G, P], BOS and any forced prefix."""

    source: Any
    first: Tensor
    layout: Layout | None
    limits: LengthLimits


@dataclass(frozen=True)
class SearchStep:
    """One step of a search: the same operations every time, none of which depends on a number on the host."""

    decoder: Decoder
    chooser: TokenSelector
    constraints: Sequence[Constraint]

    def open(self, given: SearchInput, room: int, length: int, trace: bool) -> ActiveHypotheses:
        """The search before its first choice, with stores for `room` tokens and tables for texts of `length` tokens."""
        sources, device = given.first.size(0), given.first.device
        fed = self.decoder.features(given.first, self.decoder.start(given.source, room=room), given.layout)
        found = self.chooser.start(sources, device)
        last = fed.hidden[:, -1]
        if given.layout is not None:
            last = fed.hidden[torch.arange(sources, device=device), (given.layout.lengths - 1).clamp_min(0)]
        return ActiveHypotheses(
            owner=torch.arange(sources, device=device),
            found=found,
            limits=given.limits,
            state=fed.state,
            noted=[constraint.start(sources, device) for constraint in self.constraints],
            tokens=given.first,
            hidden=last,
            t=torch.zeros((), dtype=torch.long, device=device),
            tables=BackpointerTables.empty(length, found, trace),
            layout=given.layout,
        )

    def __call__(self, now: ActiveHypotheses) -> ActiveHypotheses:
        """Chooses the next token of every hypothesis and feeds it to the decoder."""
        choice = self.choose(now)
        groups, width = choice.tokens.shape
        if choice.parents is not None and width > 1:
            row = torch.arange(groups, device=now.owner.device)[:, None] * width
            now.take((choice.parents + row).flatten())
        now.tokens, now.layout = choice.tokens.reshape(-1, 1), None
        fed = self.decoder.features(now.tokens, now.state)
        now.hidden, now.state, now.t = fed.hidden[:, -1], fed.state, now.t + 1
        return now

    def choose(self, now: ActiveHypotheses) -> Selection:
        """Applies the constraints, then the chooser. A source has one row until the first choice, and then K."""
        logits = self.decoder.logits(now.hidden)
        if now.limits.bias is not None:
            logits.unflatten(0, (now.owner.numel(), -1)).add_(now.limits.bias[:, None])
        norm = torch.zeros_like(logits[:, 0]) if self.decoder.scores else _norm(logits)
        # No EOS before the shortest length of a text.
        early = (now.t < now.limits.shortest)[:, None].expand(-1, logits.size(0) // now.limits.shortest.numel())
        logits[:, EOS].masked_fill_(early.reshape(-1), NEVER)
        for j, constraint in enumerate(self.constraints):
            logits, now.noted[j] = constraint(logits, now.tokens, now.noted[j], now.layout)
        groups, width = now.owner.numel(), self.chooser.width
        if logits.size(0) < groups * width:
            now.take(torch.arange(groups, device=logits.device).repeat_interleave(width))
            logits, norm = logits.repeat_interleave(width, 0), norm.repeat_interleave(width, 0)
        limits = now.limits
        if isinstance(now.state, CoverageState):
            limits = replace(limits, ending=now.state.penalty().view(groups, width))
        choice = self.chooser.step(logits.view(groups, width, -1), norm.view(groups, width), now.found, now.t, limits)
        now.found = choice.found
        now.tables.write(now.t, now.owner, choice)
        return choice


class StepRunner:
    """How the parts of a search are run: here eagerly; `CapturedStepRunner` captures them once per size and replays them."""

    def opening(self, key: Hashable, work: Callable[[Any], T], given: Any) -> T:
        """The result of `work(given)`; equal keys mean equal work."""
        return work(given)

    def step(self, step: SearchStep, now: ActiveHypotheses) -> ActiveHypotheses:
        return step(now)


EAGER = StepRunner()


@torch.inference_mode()
def run_search(
    decoder: Decoder,
    source: Any,
    chooser: TokenSelector,
    *,
    first: Tensor,
    limits: LengthLimits,
    first_layout: Layout | None = None,
    constraints: Sequence[Constraint] = (),
    check: int = CHECK,
    best: int | None = None,
    trace: bool = False,
    stepping: StepRunner = EAGER,
    control: Cancellation | None = None,
) -> tuple[list[list[Hypothesis]], BackpointerTables]:
    """Finds texts for each source, best first.

    first [G, P]: BOS and any forced prefix, which is not part of the result · best: texts per source, by default all. Nothing
    inside the loop waits for the device, except for the check, every `check` steps, which sources are done. When half of them
    are, their rows are dropped.
    """
    if stepping is EAGER and not trace:
        native = open_cpp_search(decoder, source, chooser, constraints, limits, first, first_layout)
        if native is not None:
            tables = native.finish(check, None if control is None else control.stop_unwanted)
            return backtrace(tables, best), tables
    prefix, device, steps = first.size(1), first.device, int(limits.longest.max())
    step, room, length = SearchStep(decoder, chooser, constraints), _room(prefix + 1, 0, device), _room(steps, TABLES, device)

    def begin(given: SearchInput) -> ActiveHypotheses:
        opened = step.open(given, room, length, trace)
        return step(opened) if steps > 1 else opened

    now = stepping.opening((room, length, trace, steps > 1), begin, SearchInput(source, first, first_layout, limits))
    watch = ActiveCounter(device, check)
    for i in range(1, steps):
        if i > 1:
            now = stepping.step(step, now)
        if control is not None and i % check == 0:
            control.stop_unwanted(now.owner, now.limits.longest)
        alive = watch(i, now.found.done)
        if alive == 0:
            break
        if alive is not None:
            now = _without(now, alive)
        if prefix + i + 1 > room and i + 1 < steps:
            room = _room(prefix + i + 1, room, device)
            now = replace(now, state=grow(now.state, room), noted=grow(now.noted, room))
    else:
        step.choose(now)
    now.tables.archive(now.owner, now.found)
    return backtrace(now.tables, best), now.tables


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

    def stop_unwanted(self, owner: Tensor, longest: Tensor) -> None:
        """Sets the longest length of unwanted rows to 0, in place, so that every chooser ends them at the next step.

        owner [G]: the number of each running source in the batch · longest [G]: the longest length of each.
        """
        self.between()
        if gone := self.gone():
            longest.masked_fill_(torch.isin(owner, torch.tensor(gone, device=owner.device)), 0)


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
    return now.leave(now.found.done.byte().argsort(stable=True)[:count])


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
