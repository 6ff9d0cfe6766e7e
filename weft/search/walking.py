"""Constraints on texts that are written all at once: the tokens of given log-probabilities, chosen from left to right.

No decoder runs in these loops, so they cost little.

Shapes: B rows · T positions · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.batch import BOS, Layout
from weft.search.constraints import NEVER, Constraint
from weft.state import select


def walk(logp: Tensor, constraints: Sequence[Constraint], owner: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The most probable allowed token at each position, given those before it: log-probabilities and tokens [B, T].

    owner [B]: the source of each row · kept [B, T]: tokens that stay unless they are forbidden, −1 where there is none.
    """
    device = logp.device
    states = [select(constraint.start(int(owner.max()) + 1, device), owner) for constraint in constraints]
    last = torch.full((logp.size(0), 1), BOS, device=device)
    scores, tokens = [], []
    for t in range(logp.size(1)):
        allowed = logp[:, t].clone()
        for place, constraint in enumerate(constraints):
            allowed, states[place] = constraint(allowed, last, states[place], None)
        best, token = allowed.max(-1)
        if kept is not None:
            own = allowed.gather(1, kept[:, t : t + 1].clamp_min(0))[:, 0]
            stays = (kept[:, t] >= 0) & (own > NEVER)
            best, token = torch.where(stays, own, best), torch.where(stays, kept[:, t], token)
        scores.append(best)
        tokens.append(token)
        last = token[:, None]
    return torch.stack(scores, 1), torch.stack(tokens, 1)


def walk_paths(logits: Tensor, lengths: Tensor, blank: int, constraints: Sequence[Constraint]) -> tuple[Tensor, Tensor]:
    """The most probable allowed path of each row [B, T] (CTC), and its log-probability [B].

    Blanks and repeated symbols add no token, so they are free. The blank is the last symbol.
    """
    logp = logits.float().log_softmax(-1)
    rows, device = logp.size(0), logp.device
    states = [constraint.start(rows, device) for constraint in constraints]
    fed, symbol = torch.full((rows, 1), BOS, device=device), torch.full((rows,), blank, device=device)
    new = torch.ones(rows, dtype=torch.bool, device=device)
    scores, path = torch.zeros(rows, device=device), []
    for t in range(logp.size(1)):
        frame = logp[:, t]
        allowed, layout = frame[:, :blank].clone(), Layout(new[:, None].to(torch.int32), torch.zeros_like(fed), None, 1)
        for place, constraint in enumerate(constraints):
            allowed, states[place] = constraint(allowed, fed, states[place], layout)
        allowed = torch.cat([allowed, frame[:, blank:]], 1)
        allowed = allowed.scatter(1, symbol[:, None], frame.gather(1, symbol[:, None]))
        best, chosen = allowed.max(-1)
        scores += best.where(t < lengths, 0.0)
        new = (chosen != blank) & (chosen != symbol)
        fed, symbol = chosen.where(new, BOS)[:, None], chosen
        path.append(chosen)
    return torch.stack(path, 1), scores
