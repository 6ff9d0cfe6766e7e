"""Greedy search: the most probable token each time."""

import torch
from torch import Tensor

from weft.decoding.search_methods import Search
from weft.decoding.token_selection import (
    CppSelector,
    LengthLimits,
    Selection,
    SelectorState,
    TokenSelector,
    extend_independently,
    top_k,
)


class GreedySelector(TokenSelector):
    """Takes the most probable token each time; scores as in beam search."""

    width = 1

    def __init__(self, penalty: float = 1.0, offset: float = 0.0) -> None:
        self.penalty, self.offset = penalty, offset

    def init_state(self, sources: int, device: torch.device) -> SelectorState:
        return SelectorState.empty(sources, 1, 1, device)

    def step(self, logits: Tensor, norm: Tensor, state: SelectorState, t: Tensor, limits: LengthLimits) -> Selection:
        # On a CPU, `max` with indices is not vectorised; `top_k` is.
        best, token = top_k(logits[:, 0], 1) if logits.device.type == "cpu" else logits.max(-1)
        return extend_independently(state, token, best.float() - norm, t, limits, self.penalty, self.offset)

    def in_cpp(self) -> CppSelector | None:
        return CppSelector(0, penalty=self.penalty, offset=self.offset)


class GreedySearch(Search):
    """Takes the most probable token at each step.

    length_penalty: a score is the log-probability divided by length to this power
    """

    kind = "greedy"
    continuous = True
    accepts = frozenset({"prefix", "avoid", "rules", "shortlist", "trace"})

    def __init__(self, *, length_penalty: float = 1.0) -> None:
        self.length_penalty = length_penalty

    def width(self, n_best: int) -> int:
        return 1

    def selector(self, n_best: int, length_penalty: float | None = None) -> TokenSelector:
        return GreedySelector(self.length_penalty if length_penalty is None else length_penalty)
