"""The search loop. It knows a decoder, a chooser and constraints, and nothing of what is inside any of them.

Shapes: G sources · K hypotheses a source · V vocabulary · P prefix tokens · T steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from weft.batch import EOS, Layout
from weft.models.base import Decoder
from weft.search.choosers import Choice, Chooser, Found, Limits
from weft.search.constraints import Constraint
from weft.state import State, grow, select

NEVER = float("-inf")
ROOM = 16
"""Stores grow by this many tokens on a CPU, and double on a GPU, where every size is a graph of its own."""


@dataclass
class Hypothesis:
    """One text: its score (as the chooser defines it) and its tokens, the last of which is EOS unless it was cut off."""

    score: float
    tokens: list[int]


@dataclass
class Tables:
    """What the loop wrote down: tokens, parents, running scores [T, G, K], and the finished ones. The beam tree is in here."""

    tokens: Tensor
    parents: Tensor
    scores: Tensor | None
    found: Found

    @staticmethod
    def empty(steps: int, found: Found, trace: bool) -> Tables:
        sources, width = found.score.shape
        tokens = torch.zeros(steps, sources, width, dtype=torch.long, device=found.score.device)
        book = replace(found, **{part.name: getattr(found, part.name).clone() for part in fields(found)})
        return Tables(tokens, torch.zeros_like(tokens), torch.zeros_like(tokens, dtype=torch.float32) if trace else None, book)

    def write(self, step: int, owner: Tensor, choice: Choice) -> None:
        width = choice.tokens.size(1)
        own = torch.arange(width, device=owner.device).expand_as(choice.tokens)
        self.tokens[step, owner] = choice.tokens
        self.parents[step, owner] = own if choice.parents is None else choice.parents
        if self.scores is not None:
            self.scores[step, owner] = choice.found.score

    def archive(self, owner: Tensor, found: Found) -> None:
        """Keeps what was found for sources that leave, or at the end."""
        for part in fields(found):
            getattr(self.found, part.name).index_copy_(0, owner, getattr(found, part.name))


@dataclass
class Running:
    """The sources still being worked on: owner [G] says which they are; state and constraints have G·K rows.

    tokens [G·K, T] are those fed last, with their layout if they were a ragged prefix.
    """

    owner: Tensor
    found: Found
    limits: Limits
    state: State
    noted: list[State]
    tokens: Tensor
    layout: Layout | None

    def take(self, rows: Tensor, groups: Tensor | None = None) -> None:
        """Reorders, multiplies or drops rows of everything that has one a hypothesis."""
        self.state, self.noted = select(self.state, rows, groups), select(self.noted, rows, groups)

    def go_on(self, choice: Choice, staying: Tensor | None) -> None:
        """Moves every hypothesis to its parent's place; of the sources only those in `staying` go on, if it is given."""
        groups, width = choice.tokens.shape
        row = torch.arange(groups * width, device=self.owner.device).view(groups, width)
        moved = choice.parents is not None and width > 1
        if moved and choice.parents is not None:
            row = choice.parents + row[:, :1]
        fed = choice.tokens
        if staying is not None:
            self.take(row[staying].flatten(), staying)
            self.found, self.limits = select(self.found, staying), select(self.limits, staying)
            self.owner, fed = self.owner[staying], fed[staying]
        elif moved:
            self.take(row.flatten())
        self.tokens, self.layout = fed.reshape(-1, 1), None


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
    check: int = 4,
    trace: bool = False,
) -> tuple[list[list[Hypothesis]], Tables]:
    """Finds texts for each source, the best first.

    `first` [G, P] is BOS and any forced prefix, which is not part of the result. Nothing inside the loop waits for the
    device but the question, every `check` steps, which sources are done; when half of them are, their rows leave.
    """
    sources, prefix = first.shape
    device, steps = first.device, int(limits.longest.max())
    room = _room(prefix, 0, device)
    step = decoder.features(first, decoder.start(source, room=room), first_layout)
    logits = decoder.logits(_last(step.hidden, first_layout))
    noted = [constraint.start(sources, device) for constraint in constraints]
    owner = torch.arange(sources, device=device)
    now = Running(owner, chooser.start(sources, device), limits, step.state, noted, first, first_layout)
    tables = Tables.empty(steps, now.found, trace)
    t = torch.zeros((), dtype=torch.long, device=device)
    for i in range(steps):
        choice = _choose(chooser, constraints, now, logits, t)
        now.found = choice.found
        tables.write(i, now.owner, choice)
        staying = None
        if i + 1 == steps:
            break
        if (i + 1) % check == 0:
            alive = (~now.found.done).nonzero()[:, 0]
            if alive.numel() == 0:
                break
            if alive.numel() <= now.owner.numel() // 2:
                tables.archive(now.owner, now.found)
                staying = alive
        now.go_on(choice, staying)
        if prefix + i + 1 > room:
            room = _room(prefix + i + 1, room, device)
            now.state, now.noted = grow(now.state, room), grow(now.noted, room)
        step = decoder.features(now.tokens, now.state)
        logits, now.state = decoder.logits(step.hidden[:, -1]), step.state
        t = t + 1
    tables.archive(now.owner, now.found)
    return read_back(tables), tables


def _choose(chooser: Chooser, constraints: Sequence[Constraint], now: Running, logits: Tensor, t: Tensor) -> Choice:
    """Constraints, then the chooser. The hypotheses of a source are one until the first choice, and then become K."""
    logits = logits.float()
    norm = logits.logsumexp(-1)
    logits = _too_short(logits, t, now.limits)
    for j, constraint in enumerate(constraints):
        logits, now.noted[j] = constraint(logits, now.tokens, now.noted[j], now.layout)
    groups, width = now.owner.numel(), chooser.width
    if logits.size(0) < groups * width:
        now.take(torch.arange(groups, device=logits.device).repeat_interleave(width))
        logits, norm = logits.repeat_interleave(width, 0), norm.repeat_interleave(width, 0)
    return chooser.step(logits.view(groups, width, -1), norm.view(groups, width), now.found, t, now.limits)


def read_back(tables: Tables) -> list[list[Hypothesis]]:
    """All finished texts at once, backwards through the tables on the device; one copy to the host."""
    found = tables.found
    steps, sources, _ = tables.tokens.shape
    row = torch.arange(sources, device=found.parent.device)[:, None]
    at, columns = found.parent, []
    for t in range(steps - 1, -1, -1):
        before = t < found.when
        token = torch.where(before, tables.tokens[t][row, at], -1)
        columns.append(torch.where(found.when == t, found.token, token))
        at = torch.where(before, tables.parents[t][row, at], at)
    best, order = found.best.sort(dim=1, descending=True, stable=True)
    texts = torch.stack(columns[::-1], -1).gather(1, order[..., None].expand(-1, -1, steps))
    scores, lines = best.tolist(), texts.tolist()
    return [
        [Hypothesis(score, [token for token in line if token >= 0]) for score, line in zip(*pair, strict=True) if score > NEVER]
        for pair in zip(scores, lines, strict=True)
    ]


def _last(hidden: Tensor, layout: Layout | None) -> Tensor:
    """The hidden state of each row's last real token: [G, P, D] → [G, D]."""
    if layout is None:
        return hidden[:, -1]
    at = (layout.lengths - 1).clamp_min(0)
    return hidden[torch.arange(hidden.size(0), device=hidden.device), at]


def _too_short(logits: Tensor, t: Tensor, limits: Limits) -> Tensor:
    """No EOS before a text's shortest length."""
    early = (t < limits.shortest).repeat_interleave(logits.size(0) // limits.shortest.numel())
    eos = torch.arange(logits.size(-1), device=logits.device) == EOS
    return logits.masked_fill(early[:, None] & eos, NEVER)


def _room(needed: int, room: int, device: torch.device) -> int:
    if device.type == "cuda":
        room = max(room, 2 * ROOM)
        while room < needed:
            room *= 2
        return room
    return -(-needed // ROOM) * ROOM
