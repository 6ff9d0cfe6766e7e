"""Required terms, by beam search with banks (Post & Vilar 2018, arXiv:1804.06609), and forbidden terms.

Every hypothesis follows each term of its source through an automaton over tokens, so the tokenisation of a term does not
matter. Shapes: G sources · K hypotheses per source · B = G·K rows · M terms per source · C candidates · U automata · S states ·
V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import EOS, Layout
from weft.decoding.beam_search import BeamSelector
from weft.decoding.token_selection import NEVER, WORST_SCORE, BeamCandidates, LengthLimits, Selection, SelectorState, top_k
from weft.layers.decoder_state import State

MET, START = 0, 2
"""States of every automaton: the term is complete · it may begin with the next token."""


@dataclass(frozen=True)
class TermAutomata:
    """The automata of the terms of some sources. Automaton 0 is that of no term, which is always complete.

    follow [U, S, V]: the state after each token · force [U, S]: the token that advances a term, −1 if there is none · left
    [U, S]: how many such tokens are missing · breaks [V]: whether a token ends the word before it · which [G, M]: the automata
    of each source's terms.
    """

    follow: Tensor
    force: Tensor
    left: Tensor
    breaks: Tensor
    which: Tensor

    def after(self, which: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
        """[…, M]: the states after tokens […], from the states `at`."""
        return self.follow[which, at, tokens[..., None]].long()

    def read(self, first: Tensor, layout: Layout | None) -> Tensor:
        """[G, M]: the states after a forced prefix [G, P]."""
        at = torch.where(self.which > 0, START, MET)
        return self.walk(self.which, at, first, layout)

    def walk(self, which: Tensor, at: Tensor, tokens: Tensor, layout: Layout | None) -> Tensor:
        """[B, M]: the states after tokens [B, T], without padding."""
        for place in range(tokens.size(1)):
            after = self.after(which, at, tokens[:, place])
            at = after if layout is None else torch.where(layout.mask[:, place, None], after, at)
        return at


class ForbiddenTerms:
    """Forbids terms: every token that would complete one."""

    def __init__(self, automata: TermAutomata) -> None:
        self.automata = automata

    def init_state(self, rows: int, device: torch.device) -> State:
        which = self.automata.which
        return [which, torch.where(which > 0, START, MET)]

    def __call__(self, logits: Tensor, tokens: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        which, before = state
        at = self.automata.walk(which, before, tokens, layout)
        # A term that the forced prefix already contains is ignored.
        met = (self.automata.follow[which, at] == MET) & (at != MET)[..., None]
        return logits.masked_fill(met.any(1), NEVER), [which, at]


@dataclass
class ConstrainedBeamState(SelectorState):
    """The state of the search, with the terms of each source [G, M] and the progress of every hypothesis [G, K, M]."""

    which: Tensor
    at: Tensor


class ConstrainedBeamSelector(BeamSelector):
    """Beam search for texts that contain every term of their source.

    Hypotheses with equal progress form a bank and compete only with each other: the best of every bank continues before the
    second best of any. The most advanced bank always has a place, and its next forced tokens are always candidates, so every
    term is written unless the longest length comes first. A text may end only when all its terms are complete.
    """

    def __init__(
        self, width: int, automata: TermAutomata, at: Tensor, penalty: float = 1.0, keep: int | None = None, offset: float = 0.0
    ) -> None:
        super().__init__(width, penalty, keep, stop="length", offset=offset)
        self.automata, self.at = automata, at

    def init_state(self, sources: int, device: torch.device) -> SelectorState:
        at = self.at[:, None].expand(-1, self.width, -1)
        return ConstrainedBeamState(**vars(super().init_state(sources, device)), which=self.automata.which, at=at.contiguous())

    def step(self, logits: Tensor, norm: Tensor, state: SelectorState, t: Tensor, limits: LengthLimits) -> Selection:
        assert isinstance(state, ConstrainedBeamState)
        width, size = logits.shape[1:]
        scores = logits.float() + (state.score - norm)[..., None]
        parent, token = self._candidates(scores, state)
        at = self.automata.after(state.which[:, None], _of(state.at, parent), token)
        complete = (self._left(state, at) == 0).all(-1)
        value = scores.flatten(1).gather(1, parent * size + token)
        number = parent * size + token
        twice = (number[:, :, None] == number[:, None, :]).tril(-1).any(-1)  # the same candidate occurs earlier
        value = value.masked_fill(twice | ((token == EOS) & ~complete), NEVER)
        order = self._order(state, at, value)
        value, parent, token, complete = (part.gather(1, order) for part in (value, parent, token, complete))
        last = (t + 1 >= limits.max_tokens)[:, None]
        ends = (token == EOS) | last
        place = torch.arange(order.size(1), device=order.device)
        final = self._final(value, parent, t, limits)
        may = ends & (place < width) & (value > NEVER) & ~state.done[:, None]
        # If the longest length comes first, a text without its terms is better than none and worse than any other.
        alone = (state.best[:, :1] == NEVER) & ~(may & complete).any(1, keepdim=True)
        final = torch.where(complete, final, torch.where(alone, final - WORST_SCORE, NEVER)).masked_fill(~may, NEVER)
        kept = self._keep(state, final, parent, token, t)
        going = torch.where(ends | (value == NEVER), place + order.size(1), place).argsort(1)[:, :width]
        score = torch.where(ends, NEVER, value).gather(1, going)
        done = state.done | last[:, 0] | self._decided(score.amax(1, keepdim=True), kept.best, t, limits)[:, 0]
        tracked = ConstrainedBeamState(**{**vars(kept), "score": score, "done": done, "at": _of(_of(at, order), going)})
        return Selection(token.gather(1, going), parent.gather(1, going), tracked, BeamCandidates(value, parent, token))

    def in_cpp(self) -> None:
        return None

    def _candidates(self, scores: Tensor, state: ConstrainedBeamState) -> tuple[Tensor, Tensor]:
        """parent, token [G, C]: the best of all and, for every hypothesis, its best token, its best token that ends a word, and
        the tokens that advance a term. A hypothesis that has no such token repeats its best one."""
        sources, width, size = scores.shape
        best = top_k(scores.view(sources, width * size), min(2 * width, width * size))[1]
        own = scores.argmax(-1)
        breaking = scores.masked_fill(~self.automata.breaks, NEVER).argmax(-1)
        forced = self.automata.force[state.which[:, None], state.at]
        forced = torch.where(forced >= 0, forced, own[..., None])
        tokens = torch.cat([own[..., None], breaking[..., None], forced], -1)
        parents = torch.arange(width, device=scores.device)[:, None].expand_as(tokens)
        return torch.cat([best // size, parents.flatten(1)], 1), torch.cat([best % size, tokens.flatten(1)], 1)

    def _left(self, state: ConstrainedBeamState, at: Tensor) -> Tensor:
        """[G, C, M]: the number of missing tokens of each term."""
        return self.automata.left[state.which[:, None], at]

    def _order(self, state: ConstrainedBeamState, at: Tensor, value: Tensor) -> Tensor:
        """[G, C]: the order in which candidates get a place in the beam."""
        whole = self.automata.left[state.which, torch.where(state.which > 0, START, MET)]
        bank = (whole[:, None] - self._left(state, at)).clamp_min(0).sum(-1)
        bank = bank.masked_fill(value == NEVER, -1)
        by_value = value.argsort(dim=1, descending=True, stable=True)
        bank = bank.gather(1, by_value)
        same = bank[:, :, None] == bank[:, None, :]
        rank = same.tril(-1).sum(-1)
        rank = torch.where((rank == 0) & (bank == bank.amax(1, keepdim=True)), -1, rank)
        rank = torch.where(bank < 0, rank + bank.size(1), rank)
        return by_value.gather(1, rank.argsort(dim=1, stable=True))


def _of(values: Tensor, places: Tensor) -> Tensor:
    """[G, C, M]: the rows `places` [G, C] of values [G, K, M]."""
    return values.gather(1, places[..., None].expand(-1, -1, values.size(-1)))


def stack(follow: Sequence[Tensor], force: Sequence[Tensor], left: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Automata of different sizes as one block, after that of no term."""
    states = max(part.size(0) for part in follow)
    none = (torch.zeros_like(follow[0][:1]), torch.full_like(force[0][:1], -1), torch.zeros_like(left[0][:1]))
    blocks = zip((follow, force, left), none, strict=True)
    tables, forced, missing = (
        torch.stack([F.pad(part, [0] * (2 * part.dim() - 1) + [states - part.size(0)]) for part in (empty, *parts)])
        for parts, empty in blocks
    )
    return tables, forced, missing
