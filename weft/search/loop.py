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
from weft.search.choosers import Chooser, Found, Limits
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
    device = first.device
    width, steps = chooser.width, int(limits.longest.max())
    room = _room(prefix, 0, device)
    noted = [constraint.start(sources, device) for constraint in constraints]
    step = decoder.features(first, decoder.start(source, room=room), first_layout)
    logits = decoder.logits(_last(step.hidden, first_layout))
    state: dict[str, State] = {"decoder": step.state, "constraints": noted}
    tokens, layout = first, first_layout

    found = chooser.start(sources, device)
    book = replace(found, **{part.name: getattr(found, part.name).clone() for part in fields(found)})
    tables = Tables(
        torch.zeros(steps, sources, width, dtype=torch.long, device=device),
        torch.zeros(steps, sources, width, dtype=torch.long, device=device),
        torch.zeros(steps, sources, width, device=device) if trace else None,
        book,
    )
    owner = torch.arange(sources, device=device)
    own = torch.arange(width, device=device)
    t = torch.zeros((), dtype=torch.long, device=device)

    for i in range(steps):
        logits = logits.float()
        norm = logits.logsumexp(-1)
        logits = _too_short(logits, t, limits)
        for j, constraint in enumerate(constraints):
            logits, state["constraints"][j] = constraint(logits, tokens, state["constraints"][j], layout)
        layout = None
        if i == 0:  # until now the hypotheses of a source were one
            many = torch.arange(owner.numel(), device=device).repeat_interleave(width)
            state, logits, norm = select(state, many), logits.repeat_interleave(width, 0), norm.repeat_interleave(width, 0)
        groups = owner.numel()
        choice = chooser.step(logits.view(groups, width, -1), norm.view(groups, width), found, t, limits)
        found = choice.found
        tables.tokens[i, owner] = choice.tokens
        tables.parents[i, owner] = own.expand(groups, width) if choice.parents is None else choice.parents
        if tables.scores is not None:
            tables.scores[i, owner] = found.score
        t = t + 1
        if i + 1 == steps:
            break
        staying = None
        if (i + 1) % check == 0:
            alive = (~found.done).nonzero()[:, 0]
            if alive.numel() == 0:
                break
            staying = alive if alive.numel() <= groups // 2 else None
        rows = _rows(choice.parents, groups, width, device)
        fed = choice.tokens
        if staying is not None:
            _archive(book, owner, found)
            everyone = torch.arange(groups * width, device=device).view(groups, width) if rows is None else rows
            state = select(state, everyone[staying].flatten(), staying)
            found = select(found, staying)
            limits = select(limits, staying)
            owner, fed = owner[staying], fed[staying]
        elif rows is not None:
            state = select(state, rows.flatten())
        tokens = fed.reshape(-1, 1)
        if prefix + i + 1 > room:
            room = _room(prefix + i + 1, room, device)
            state = grow(state, room)
        step = decoder.features(tokens, state["decoder"])
        logits, state["decoder"] = decoder.logits(step.hidden[:, -1]), step.state
    _archive(book, owner, found)
    return read_back(tables), tables


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


def _rows(parents: Tensor | None, groups: int, width: int, device: torch.device) -> Tensor | None:
    """Parents inside a source as row numbers [G, K]."""
    if parents is None or width == 1:
        return None
    return parents + torch.arange(groups, device=device)[:, None] * width


def _room(needed: int, room: int, device: torch.device) -> int:
    if device.type == "cuda":
        room = max(room, 2 * ROOM)
        while room < needed:
            room *= 2
        return room
    return -(-needed // ROOM) * ROOM


def _archive(book: Found, owner: Tensor, found: Found) -> None:
    for part in fields(found):
        getattr(book, part.name).index_copy_(0, owner, getattr(found, part.name))
