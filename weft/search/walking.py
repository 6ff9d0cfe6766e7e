"""Constraints on texts that are written all at once: the tokens of given log-probabilities, chosen from left to right.

No decoder runs in these loops, so they cost little.

Shapes: B rows · T positions · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.batch import BOS, Layout
from weft.search.constraints import NEVER, Constraint
from weft.state import State, select


@dataclass
class Following:
    """Constraints on texts that grow by one token at a time, or stay as they are.

    states: of each constraint · last [B]: the last token of each text, BOS before the first · new [B]: whether the constraints
    have not seen it yet.
    """

    constraints: Sequence[Constraint]
    states: list[State]
    last: Tensor
    new: Tensor

    @staticmethod
    def start(constraints: Sequence[Constraint], owner: Tensor) -> Following:
        """owner [B]: the source of each row."""
        sources = int(owner.max()) + 1
        states = [select(constraint.start(sources, owner.device), owner) for constraint in constraints]
        return Following(constraints, states, torch.full_like(owner, BOS), torch.ones_like(owner, dtype=torch.bool))

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


def walk(logp: Tensor, constraints: Sequence[Constraint], owner: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The most probable allowed token at each position, given those before it: log-probabilities and tokens [B, T].

    owner [B]: the source of each row · kept [B, T]: tokens that stay unless they are forbidden, −1 where there is none.
    """
    following = Following.start(constraints, owner)
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


def walk_paths(logits: Tensor, lengths: Tensor, blank: int, constraints: Sequence[Constraint]) -> tuple[Tensor, Tensor]:
    """The most probable allowed path of each row [B, T] (CTC), and its log-probability [B].

    Blanks and repeated symbols add no token, so they are free. The blank is the last symbol.
    """
    logp = logits.float().log_softmax(-1)
    rows, device = logp.size(0), logp.device
    following = Following.start(constraints, torch.arange(rows, device=device))
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
