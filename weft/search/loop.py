"""The search loop. It knows a decoder, a chooser and constraints, and nothing of what is inside any of them.

Shapes: G sources · K hypotheses a source · V vocabulary · P prefix tokens · T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from weft.batch import EOS, Layout, power_of_two
from weft.models.base import Decoder
from weft.native import used
from weft.search.choosers import NEVER, Choice, Chooser, Found, Limits
from weft.search.constraints import Constraint
from weft.search.control import Control
from weft.search.tables import Hypothesis, Tables, read_back
from weft.state import State, grow, select

ROOM = 16
"""Stores grow by this many tokens on a CPU, and double on a GPU, where every size is a graph of its own."""

CHECK = 4
"""After so many steps the host asks which sources are done."""

FEWEST = 32
"""On a GPU no rows leave below so many sources: a step takes as long for fewer."""


@dataclass
class Running:
    """The sources still being worked on: owner [G] says which they are; state and constraints have G·K rows.

    tokens [G·K, T] are those fed last, with their layout if they were a ragged prefix; hidden [G·K, D] is what the decoder
    made of them. t: the number of the step, a scalar on the device.
    """

    owner: Tensor
    found: Found
    limits: Limits
    state: State
    noted: list[State]
    tokens: Tensor
    hidden: Tensor
    t: Tensor
    tables: Tables
    layout: Layout | None = None

    def take(self, rows: Tensor, groups: Tensor | None = None) -> None:
        """Reorders, multiplies or drops rows of everything that has one a hypothesis."""
        self.state, self.noted = select(self.state, rows, groups), select(self.noted, rows, groups)

    def leave(self, staying: Tensor) -> Running:
        """The search with the sources in `staying` alone; what was found for the others is kept."""
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

    def grow(self, room: int) -> Running:
        """The search with room for so many tokens."""
        return replace(self, state=grow(self.state, room), noted=grow(self.noted, room))


@dataclass
class Given:
    """What a search begins with: the source as it was read, and `first` [G, P], BOS and any forced prefix."""

    source: Any
    first: Tensor
    layout: Layout | None
    limits: Limits


@dataclass(frozen=True)
class Step:
    """One step of a search, the same operations every time: nothing in it depends on a number that the host knows."""

    decoder: Decoder
    chooser: Chooser
    constraints: Sequence[Constraint]

    def open(self, given: Given, room: int, length: int, trace: bool) -> Running:
        """The search before its first choice, with stores for `room` tokens and tables for texts of `length` tokens."""
        sources, device = given.first.size(0), given.first.device
        fed = self.decoder.features(given.first, self.decoder.start(given.source, room=room), given.layout)
        found = self.chooser.start(sources, device)
        return Running(
            owner=torch.arange(sources, device=device),
            found=found,
            limits=given.limits,
            state=fed.state,
            noted=[constraint.start(sources, device) for constraint in self.constraints],
            tokens=given.first,
            hidden=_last(fed.hidden, given.layout),
            t=torch.zeros((), dtype=torch.long, device=device),
            tables=Tables.empty(length, found, trace),
            layout=given.layout,
        )

    def __call__(self, now: Running) -> Running:
        """Every hypothesis chooses its next token, and the decoder is fed with them."""
        choice = self.choose(now)
        groups, width = choice.tokens.shape
        if choice.parents is not None and width > 1:
            row = torch.arange(groups, device=now.owner.device)[:, None] * width
            now.take((choice.parents + row).flatten())
        now.tokens, now.layout = choice.tokens.reshape(-1, 1), None
        fed = self.decoder.features(now.tokens, now.state)
        now.hidden, now.state, now.t = fed.hidden[:, -1], fed.state, now.t + 1
        return now

    def choose(self, now: Running) -> Choice:
        """Constraints, then the chooser. The hypotheses of a source are one until the first choice, and then become K."""
        logits = self.decoder.logits(now.hidden)
        if now.limits.bias is not None:
            logits.unflatten(0, (now.owner.numel(), -1)).add_(now.limits.bias[:, None])
        norm = _norm(logits)
        _too_short(logits, now.t, now.limits)
        for j, constraint in enumerate(self.constraints):
            logits, now.noted[j] = constraint(logits, now.tokens, now.noted[j], now.layout)
        groups, width = now.owner.numel(), self.chooser.width
        if logits.size(0) < groups * width:
            now.take(torch.arange(groups, device=logits.device).repeat_interleave(width))
            logits, norm = logits.repeat_interleave(width, 0), norm.repeat_interleave(width, 0)
        choice = self.chooser.step(logits.view(groups, width, -1), norm.view(groups, width), now.found, now.t, now.limits)
        now.found = choice.found
        now.tables.write(now.t, now.owner, choice)
        return choice


class Stepping(Protocol):
    """How the parts of a search are worked through: as they are, or recorded once for a size and replayed."""

    def opening(self, key: Hashable, work: Callable[[Given], Running], given: Given) -> Running:
        """What `work` makes of `given`; equal keys stand for equal work."""
        ...

    def step(self, step: Step, now: Running) -> Running: ...


class Eager:
    """Everything as it is."""

    def opening(self, key: Hashable, work: Callable[[Given], Running], given: Given) -> Running:
        return work(given)

    def step(self, step: Step, now: Running) -> Running:
        return step(now)


EAGER = Eager()


@torch.inference_mode()
def generate(
    decoder: Decoder,
    source: Any,
    chooser: Chooser,
    *,
    first: Tensor,
    limits: Limits,
    first_layout: Layout | None = None,
    constraints: Sequence[Constraint] = (),
    check: int = CHECK,
    best: int | None = None,
    trace: bool = False,
    stepping: Stepping = EAGER,
    control: Control | None = None,
) -> tuple[list[list[Hypothesis]], Tables]:
    """Finds texts for each source, the best first.

    `first` [G, P] is BOS and any forced prefix, which is not part of the result; `best`: how many texts a source, all by
    default. Nothing inside the loop waits for the device but the question, every `check` steps, which sources are done; when
    half of them are, their rows leave.
    """
    prefix, device, steps = first.size(1), first.device, int(limits.longest.max())
    step, room, length = Step(decoder, chooser, constraints), _room(prefix + 1, 0, device), _room(steps, 0, device)

    def begin(given: Given) -> Running:
        opened = step.open(given, room, length, trace)
        return step(opened) if steps > 1 else opened

    now = stepping.opening((room, length, trace, steps > 1), begin, Given(source, first, first_layout, limits))
    watch = Watch(device, check)
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
            now = now.grow(room)
    else:
        step.choose(now)
    now.tables.archive(now.owner, now.found)
    return read_back(now.tables, best), now.tables


class Watch:
    """Looks every `check` steps how many sources go on.

    A GPU is asked after one step and answers after the next, so that it never waits for the host.
    """

    def __init__(self, device: torch.device, check: int) -> None:
        self.check, self.late = check, device.type == "cuda" and check > 1
        self._count = torch.zeros((), dtype=torch.long, pin_memory=True) if self.late else None
        self._told = torch.cuda.Event() if self.late else None

    def __call__(self, i: int, done: Tensor) -> int | None:
        """How many sources are not done, if it is known after step i."""
        if self._count is None or self._told is None:
            return int((~done).sum()) if i % self.check == 0 else None
        if i % self.check == 0:
            self._count.copy_((~done).sum(), non_blocking=True)
            self._told.record()
        if i % self.check != 1 or i == 1:
            return None
        self._told.synchronize()
        return int(self._count)


def _without(now: Running, alive: int) -> Running:
    """The search without sources that are done, where half of them are, and at most `alive` are not."""
    cuda = now.owner.device.type == "cuda"
    # On a GPU searches come in few sizes, as stores do: some that are done stay to make up a power of two.
    count = max(power_of_two(alive), FEWEST) if cuda else alive
    if count > now.owner.numel() // 2:
        return now
    return now.leave(now.found.done.byte().argsort(stable=True)[:count])


def _last(hidden: Tensor, layout: Layout | None) -> Tensor:
    """The hidden state of each row's last real token: [G, P, D] → [G, D]."""
    if layout is None:
        return hidden[:, -1]
    at = (layout.lengths - 1).clamp_min(0)
    return hidden[torch.arange(hidden.size(0), device=hidden.device), at]


def _norm(logits: Tensor) -> Tensor:
    """logsumexp [B] in float32 of logits [B, V], in one pass: what log-softmax takes from a logit that is never −inf."""
    native = used(logits)
    if native is not None:
        return native.log_sum(logits)
    logp = logits.log_softmax(-1, dtype=torch.float32)
    return logits[:, EOS].float() - logp[:, EOS]


def _too_short(logits: Tensor, t: Tensor, limits: Limits) -> None:
    """Forbids EOS before a text's shortest length, in place."""
    early = (t < limits.shortest)[:, None].expand(-1, logits.size(0) // limits.shortest.numel())
    logits[:, EOS].masked_fill_(early.reshape(-1), NEVER)


def _room(needed: int, room: int, device: torch.device) -> int:
    if device.type == "cuda":
        room = max(room, 2 * ROOM)
        while room < needed:
            room *= 2
        return room
    return -(-needed // ROOM) * ROOM
