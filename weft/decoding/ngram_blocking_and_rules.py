"""Constraints: what a text may not contain. A constraint changes the logits before a token is chosen, and keeps its own state.

Texts that are written all at once follow them too: their tokens are chosen from left to right, given log-probabilities. No
decoder runs in these loops, so they cost little.

Shapes: B rows · V vocabulary · T tokens just fed, or positions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from weft.data.batch import BOS, PAD, UNK, Layout
from weft.layers.decoder_state import State, select

NEVER = float("-inf")

FORBIDDEN = (PAD, BOS, UNK)
"""Tokens that no text contains."""


class Constraint(Protocol):
    """Changes logits before a token is chosen."""

    def init_state(self, rows: int, device: torch.device) -> State: ...

    def __call__(self, logits: Tensor, tokens: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        """logits [B, V] for the next token, tokens [B, T] just fed → logits with −inf where forbidden, and the next state.

        The logits may be changed in place.
        """
        ...


@dataclass
class ForbiddenTokens:
    """Tokens [N], the same for all rows."""

    tokens: Tensor

    def select(self, rows: Tensor, groups: Tensor | None) -> ForbiddenTokens:
        return self

    def insert_rows(self, new: ForbiddenTokens, places: Tensor, sources: int) -> None:
        pass


class ForbidTokens:
    """Forbids tokens everywhere."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def init_state(self, rows: int, device: torch.device) -> State:
        tokens = torch.empty(len(self.tokens), dtype=torch.long, device=device)
        for place, token in enumerate(self.tokens):
            tokens[place].fill_(token)  # a copy from host memory cannot be recorded in a CUDA graph
        return ForbiddenTokens(tokens)

    def __call__(self, logits: Tensor, tokens: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        return logits.index_fill_(1, state.tokens, NEVER), state


class NoRepeatNgram:
    """Forbids writing any sequence of `size` tokens twice."""

    def __init__(self, size: int, longest: int) -> None:
        self.size, self.longest = size, longest

    def init_state(self, rows: int, device: torch.device) -> State:
        return [torch.full((rows, self.longest), -1, device=device), torch.zeros(rows, dtype=torch.long, device=device)]

    def __call__(self, logits: Tensor, tokens: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        said, count = append(state[0], state[1], tokens, layout)
        size = self.size
        windows = said.unfold(1, size, 1)
        if size > 1:
            recent = count[:, None] - (size - 1) + torch.arange(size - 1, device=said.device)
            tail = said.gather(1, recent.clamp_min(0))
            again = (windows[..., :-1] == tail[:, None]).all(-1) & (count >= size - 1)[:, None]
        else:
            again = torch.ones_like(windows[..., 0], dtype=torch.bool)
        banned = windows[..., -1]
        again &= banned >= 0
        hits = torch.zeros(logits.size(0), logits.size(1) + 1, dtype=torch.bool, device=logits.device)
        hits.scatter_(1, torch.where(again, banned, logits.size(1)), True)
        return logits.masked_fill(hits[:, :-1], NEVER), [said, count]


class PaddedConstraint:
    """A constraint on `sources` texts, with `more` rows after them, whose texts do not matter: they follow the last source."""

    def __init__(self, constraint: Constraint, sources: int, more: int) -> None:
        self.constraint, self.sources, self.more = constraint, sources, more

    def init_state(self, rows: int, device: torch.device) -> State:
        source = torch.arange(self.sources + self.more, device=device).clamp_max(self.sources - 1)
        return select(self.constraint.init_state(self.sources, device), source)

    def __call__(self, logits: Tensor, tokens: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        return self.constraint(logits, tokens, state, layout)


def append(written: Tensor, count: Tensor, tokens: Tensor, layout: Layout | None) -> tuple[Tensor, Tensor]:
    """Writes the tokens just fed [B, T] into written [B, N] at the places from count [B] on.

    Padding, and tokens for which there is no place, go to the last column, as −1.
    """
    real, last = torch.ones_like(tokens, dtype=torch.bool) if layout is None else layout.mask, written.size(1) - 1
    place = torch.where(real, count[:, None] + real.long().cumsum(1) - 1, last).clamp_max(last)
    return written.scatter(1, place, torch.where(place < last, tokens, -1)), count + real.sum(1)


def usual_constraints(no_repeat_ngram: int, longest: int) -> list[Constraint]:
    """The constraints on every text; `longest`: the most tokens of any of them, prefix included."""
    constraints: list[Constraint] = [ForbidTokens(list(FORBIDDEN))]
    if 0 < no_repeat_ngram <= longest:
        constraints.append(NoRepeatNgram(no_repeat_ngram, longest + 1))
    return constraints


class RuleConstraint(Constraint, Protocol):
    """The constraint of some rules of `decode.rules`."""

    def __init__(self, rules: Collection[str], sources: Sequence[Sequence[int]], content: Sequence[Sequence[int]]) -> None:
        """rules: their names · sources: the tokens of each source, without EOS · content: those with a letter or a digit."""


class Rule:
    """A rule of `decode.rules`, which ties a text to its source token by token.

    constraint: of all rules that share it · same_length: a text has exactly as many tokens as its source · one_vocabulary:
    tokens of both sides are compared.
    """

    constraint: ClassVar[type[RuleConstraint]]
    same_length: ClassVar[bool] = False
    one_vocabulary: ClassVar[bool] = False


@dataclass
class PrefixConstraints:
    """Constraints on texts that grow by one token at a time, or stay as they are.

    states: of each constraint · last [B]: the last token of each text, BOS before the first · new [B]: whether the constraints
    have not seen it yet.
    """

    constraints: Sequence[Constraint]
    states: list[State]
    last: Tensor
    new: Tensor

    @staticmethod
    def start(constraints: Sequence[Constraint], owner: Tensor) -> PrefixConstraints:
        """owner [B]: the source of each row."""
        sources = int(owner.max()) + 1
        states = [select(constraint.init_state(sources, owner.device), owner) for constraint in constraints]
        return PrefixConstraints(constraints, states, torch.full_like(owner, BOS), torch.ones_like(owner, dtype=torch.bool))

    def allowed(self, logp: Tensor) -> Tensor:
        """logp [B, V], which may be changed in place, with −inf at tokens that may not be next."""
        fed = self.last[:, None]
        layout = Layout(self.new[:, None].to(torch.int32), torch.zeros_like(fed), None, 1)
        for place, constraint in enumerate(self.constraints):
            logp, self.states[place] = constraint(logp, fed, self.states[place], layout)
        return logp

    def follow(self, last: Tensor, new: Tensor, rows: Tensor | None = None) -> None:
        """Each text ends with `last` now, which is `new` or was there before. rows [B]: the row that each continues."""
        if rows is not None:
            self.states = select(self.states, rows)
        self.last, self.new = last, new


def constrained_argmax(
    logp: Tensor, constraints: Sequence[Constraint], owner: Tensor, kept: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The most probable allowed token at each position, given those before it: log-probabilities and tokens [B, T].

    owner [B]: the source of each row · kept [B, T]: tokens that stay unless they are forbidden, −1 where there is none.
    """
    following = PrefixConstraints.start(constraints, owner)
    scores, tokens = [], []
    for t in range(logp.size(1)):
        allowed = following.allowed(logp[:, t].clone())
        best, token = allowed.max(-1)
        if kept is not None:
            own = allowed.gather(1, kept[:, t : t + 1].clamp_min(0))[:, 0]
            stays = (kept[:, t] >= 0) & (own > NEVER)
            best, token = torch.where(stays, own, best), torch.where(stays, kept[:, t], token)
        scores.append(best)
        tokens.append(token)
        following.follow(token, torch.ones_like(following.new))
    return torch.stack(scores, 1), torch.stack(tokens, 1)


def constrained_ctc_path(
    logits: Tensor, lengths: Tensor, blank: int, constraints: Sequence[Constraint]
) -> tuple[Tensor, Tensor]:
    """The most probable allowed path of each row [B, T] (CTC), and its log-probability [B].

    Blanks and repeated symbols add no token, so they are free. The blank is the last symbol.
    """
    logp = logits.float().log_softmax(-1)
    rows, device = logp.size(0), logp.device
    following = PrefixConstraints.start(constraints, torch.arange(rows, device=device))
    symbol, scores = torch.full((rows,), blank, device=device), torch.zeros(rows, device=device)
    path = []
    for t in range(logp.size(1)):
        frame = logp[:, t]
        allowed = torch.cat([following.allowed(frame[:, :blank].clone()), frame[:, blank:]], 1)
        allowed = allowed.scatter(1, symbol[:, None], frame.gather(1, symbol[:, None]))
        best, chosen = allowed.max(-1)
        scores += best.where(t < lengths, 0.0)
        new = (chosen != blank) & (chosen != symbol)
        following.follow(chosen.where(new, BOS), new)
        symbol = chosen
        path.append(chosen)
    return torch.stack(path, 1), scores
