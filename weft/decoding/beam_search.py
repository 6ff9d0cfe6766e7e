"""Selectors of beam search and of greedy search."""

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import EOS
from weft.decoding.token_selection import (
    NEVER,
    WORST_SCORE,
    BeamCandidates,
    CppSelector,
    LengthLimits,
    Selection,
    SelectorState,
    TokenSelector,
    candidates,
    extend_independently,
    length_penalty,
    top_k,
)

STOPS = ("exact", "length", "first")


class BeamSelector(TokenSelector):
    """Beam search. A finished score is log-probability / lengthᵅ, where the length counts generated tokens and EOS, plus the
    `ending` of the limits, such as a coverage penalty. With an offset, the length is (offset + length) / (offset + 1).

    Of the best 2K candidates, those among the first K may finish; at the longest length all do. `stop` says when a source
    is done: "exact", when no running hypothesis can beat the worst one kept; "length" and "first" are the two usual
    heuristics, which may miss a better hypothesis.
    """

    def __init__(
        self,
        width: int,
        penalty: float = 1.0,
        keep: int | None = None,
        stop: Literal["exact", "length", "first"] = "exact",
        offset: float = 0.0,
    ) -> None:
        self.width, self.penalty, self.keep, self.stop, self.offset = width, penalty, keep or width, stop, offset

    def init_state(self, sources: int, device: torch.device) -> SelectorState:
        state = SelectorState.empty(sources, self.width, self.keep, device)
        state.score[:, 1:] = NEVER  # all hypotheses are equal at first, so only one of them counts
        return state

    def step(self, logits: Tensor, norm: Tensor, state: SelectorState, t: Tensor, limits: LengthLimits) -> Selection:
        top, parent, token = candidates(logits, state.score - norm, 2 * self.width)
        last = (t + 1 >= limits.max_tokens)[:, None]
        ends, width = (token == EOS) | last, self.width
        may_end = (logits[:, :, EOS] > NEVER).gather(1, parent)
        rank = torch.arange(top.size(1), device=top.device)
        final = self._final(top, parent, t, limits)
        # A hypothesis that is cut off where EOS is forbidden ranks below all others.
        final = torch.where(may_end, final, final - WORST_SCORE)
        final = torch.where(ends & (rank < width) & (top > NEVER) & ~state.done[:, None], final, NEVER)
        kept = self._keep(state, final, parent, token, t)
        score, chosen = torch.where(ends, NEVER, top).topk(min(width, top.size(1)))
        if score.size(1) < width:
            missing = width - score.size(1)
            score, chosen = F.pad(score, (0, missing), value=NEVER), F.pad(chosen, (0, missing))
        done = state.done | last[:, 0] | self._decided(score.amax(1), kept.best, t, limits)
        state = replace(kept, score=score, done=done)
        return Selection(token.gather(1, chosen), parent.gather(1, chosen), state, BeamCandidates(top, parent, token))

    def in_cpp(self) -> CppSelector | None:
        return CppSelector(1, self.keep, STOPS.index(self.stop), self.penalty, self.offset)

    def _final(self, score: Tensor, parent: Tensor, t: Tensor, limits: LengthLimits) -> Tensor:
        """[G, N]: the scores of candidates that end with this step."""
        final = score / length_penalty(t + 1, score, self.penalty, self.offset)
        return final if limits.ending is None else final + limits.ending.gather(1, parent)

    def _keep(self, state: SelectorState, final: Tensor, parent: Tensor, token: Tensor, t: Tensor) -> SelectorState:
        """The table of finished hypotheses, with the new ones sorted in."""
        best, place = torch.cat([state.best, final], 1).topk(self.keep)

        def merge(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat([old, new], 1).gather(1, place)

        when = merge(state.when, t.expand_as(parent))
        return replace(state, best=best, when=when, parent=merge(state.parent, parent), token=merge(state.token, token))

    def _decided(self, lead: Tensor, best: Tensor, t: Tensor, limits: LengthLimits) -> Tensor:
        """[G]: whether no running hypothesis can enter the table any more."""
        full = best[:, -1] > NEVER
        if self.stop == "first":
            return full | (lead == NEVER)
        if self.stop == "exact" and self.penalty > 0:
            length = limits.max_tokens
        else:
            length = t + (2 if self.stop == "exact" else 1)
        # The ending of a hypothesis is at most 0, so without it this is the most that it can reach.
        return (full & (lead / length_penalty(length, lead, self.penalty, self.offset) <= best[:, -1])) | (lead == NEVER)


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
