"""Beam search."""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from weft.data.batch import EOS
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.length_and_coverage_penalty import CoverageDecoder, length_penalty
from weft.decoding.search_methods import FEATURES, Search
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
)
from weft.models.base import Decoder

if TYPE_CHECKING:
    from weft.decoding.lexical_constraints import TermAutomata

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
        last = t + 1 >= limits.max_tokens[:, None]
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
        done = state.done | last[:, 0] | self._decided(score.amax(1, keepdim=True), kept.best, t, limits)[:, 0]
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
        """[G, 1]: whether no running hypothesis, of which the best has the score lead [G, 1], can enter the table any more."""
        worst = best[:, -1:]
        full = worst > NEVER
        if self.stop == "first":
            return full | (lead == NEVER)
        if self.stop == "exact" and self.penalty > 0:
            length = limits.max_tokens[:, None]
        else:
            length = t + (2 if self.stop == "exact" else 1)
        # The ending of a hypothesis is at most 0, so without it this is the most that it can reach.
        return (full & (lead / length_penalty(length, lead, self.penalty, self.offset) <= worst)) | (lead == NEVER)


class BeamSearch(Search):
    """Keeps the most probable hypotheses of each step (beam search).

    width: hypotheses per source; decode.n_best and decode.rerank may widen it
    length_penalty: a finished score is the log-probability divided by length to this power
    length_offset: the length is replaced by (offset + length) / (offset + 1); Wu et al. 2016 use 5
    coverage_penalty: weight β of β Σ log(min(attention to a source token, 1)), which is added to a finished score (Wu et al.
        2016); attention is the mean over all heads and layers that attend to the source
    stop: when a source is done: exact, when no running hypothesis can still win; length and first are faster heuristics
    """

    kind = "beam"
    continuous = True
    accepts = frozenset(FEATURES)

    def __init__(
        self,
        *,
        width: PositiveInt = 4,
        length_penalty: float = 1.0,
        length_offset: NonNegativeFloat = 0.0,
        coverage_penalty: NonNegativeFloat = 0.0,
        stop: Literal["exact", "length", "first"] = "exact",
    ) -> None:
        self.beam, self.length_penalty, self.stop = width, length_penalty, stop
        self.length_offset, self.coverage_penalty = length_offset, coverage_penalty

    def wrap_decoder(self, decoder: Decoder) -> Decoder:
        decoder = super().wrap_decoder(decoder)
        return CoverageDecoder(decoder, self.coverage_penalty) if self.coverage_penalty else decoder

    def width(self, n_best: int) -> int:
        return max(self.beam, n_best)

    def final(self, n_best: int) -> bool:
        return self.width(n_best) == 1

    def selector(self, n_best: int, length_penalty: float | None = None) -> TokenSelector:
        penalty, width = self.length_penalty if length_penalty is None else length_penalty, self.width(n_best)
        if width == 1:
            return GreedySelector(penalty, self.length_offset)
        return BeamSelector(width, penalty, stop=self.stop, offset=self.length_offset)

    def constrained_selector(self, required: "TermAutomata", state: Tensor, n_best: int) -> TokenSelector:
        from weft.decoding.lexical_constraints import ConstrainedBeamSelector  # which extends the selector above

        rows, keep = self.rows(n_best, required=True), self.width(n_best)
        return ConstrainedBeamSelector(rows, required, state, self.length_penalty, keep, self.length_offset)
