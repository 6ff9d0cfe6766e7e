"""Constraints: what a text may not contain. A constraint changes the logits before a token is chosen, and keeps its own state.

Shapes: B rows · V vocabulary · T tokens just fed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from weft.batch import BOS, PAD, UNK, Layout
from weft.state import State

NEVER = float("-inf")

FORBIDDEN = (PAD, BOS, UNK)
"""Tokens that no text contains."""


class Constraint(Protocol):
    """Changes logits before a token is chosen."""

    def start(self, rows: int, device: torch.device) -> State: ...

    def __call__(self, logits: Tensor, tokens: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        """logits [B, V] for the next token, tokens [B, T] just fed → logits with −inf where forbidden, and the next state.

        The logits may be changed in place.
        """
        ...


@dataclass
class Banned:
    """Tokens [N], the same for all rows."""

    tokens: Tensor

    def select(self, rows: Tensor, groups: Tensor | None) -> Banned:
        return self


class Forbid:
    """Forbids tokens everywhere."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def start(self, rows: int, device: torch.device) -> State:
        tokens = torch.empty(len(self.tokens), dtype=torch.long, device=device)
        for place, token in enumerate(self.tokens):
            tokens[place].fill_(token)  # a copy from host memory cannot be recorded in a CUDA graph
        return Banned(tokens)

    def __call__(self, logits: Tensor, tokens: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        return logits.index_fill_(1, state.tokens, NEVER), state


class NoRepeat:
    """Forbids writing any sequence of `size` tokens twice."""

    def __init__(self, size: int, longest: int) -> None:
        self.size, self.longest = size, longest

    def start(self, rows: int, device: torch.device) -> State:
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


def append(written: Tensor, count: Tensor, tokens: Tensor, layout: Layout | None) -> tuple[Tensor, Tensor]:
    """Writes the tokens just fed [B, T] into written [B, N] at the places from count [B] on.

    Padding, and tokens for which there is no place, go to the last column, as −1.
    """
    real, last = torch.ones_like(tokens, dtype=torch.bool) if layout is None else layout.ok, written.size(1) - 1
    place = torch.where(real, count[:, None] + real.long().cumsum(1) - 1, last).clamp_max(last)
    return written.scatter(1, place, torch.where(place < last, tokens, -1)), count + real.sum(1)


def usual_constraints(no_repeat_ngram: int, longest: int) -> list[Constraint]:
    """The constraints on every text; `longest`: the most tokens of any of them, prefix included."""
    found: list[Constraint] = [Forbid(list(FORBIDDEN))]
    if 0 < no_repeat_ngram <= longest:
        found.append(NoRepeat(no_repeat_ngram, longest + 1))
    return found
