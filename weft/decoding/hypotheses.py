"""The tables that a search writes on the device, and reading texts from them.

Shapes: G sources · K hypotheses per source · T steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from weft.data.batch import EOS
from weft.decoding.token_selection import NEVER, WORST_SCORE, BeamCandidates, Selection, SelectorState
from weft.layers.decoder_state import select


@dataclass(frozen=True)
class RefinementPass:
    """A pass of a decoder that writes all tokens at once: the symbols at all positions, and which of them it wrote."""

    tokens: list[int]
    written: list[bool]


@dataclass
class Hypothesis:
    """A text: its score, as the selector defines it, and its tokens; the last one is EOS unless the text was cut off.

    passes: of a traced search that writes all tokens at once.
    """

    score: float
    tokens: list[int]
    passes: list[RefinementPass] = field(default_factory=list, compare=False)


@dataclass
class BackpointerTables:
    """Tokens and parents [T, G, K] of each step, and the finished hypotheses.

    A traced search also has the beam tree: running scores [T, G, K], NaN after the last step, and the candidates [T, G, N] of
    each step, if the selector has any.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor | None
    selector_state: SelectorState
    candidates: BeamCandidates | None = None

    @staticmethod
    def empty(steps: int, state: SelectorState, trace: bool) -> BackpointerTables:
        sources, width = state.score.shape
        tokens = torch.zeros(steps, sources, width, dtype=torch.long, device=state.score.device)
        kept = replace(state, **{part.name: getattr(state, part.name).clone() for part in fields(state)})
        scores = torch.full_like(tokens, float("nan"), dtype=torch.float32) if trace else None
        own = torch.arange(width, device=tokens.device).expand_as(tokens).contiguous()
        return BackpointerTables(tokens, own, scores, kept)

    def write(self, step: Tensor, owner: Tensor, selection: Selection) -> None:
        """Writes the selection of step number `step`, a scalar on the device or one number per source."""
        place = (step.flatten().expand_as(owner), owner)
        self.tokens.index_put_(place, selection.tokens)
        if selection.parents is not None:
            self.parents.index_put_(place, selection.parents)
        if self.scores is not None:
            self.scores.index_put_(place, selection.selector_state.score)
        if self.scores is not None and selection.candidates is not None:
            parts = vars(selection.candidates)
            if self.candidates is None:
                size = (*self.tokens.shape[:2], selection.candidates.score.size(1))
                self.candidates = BeamCandidates(**{name: part.new_zeros(size) for name, part in parts.items()})
            for name, part in parts.items():
                getattr(self.candidates, name).index_put_(place, part)

    def archive(self, owner: Tensor, state: SelectorState) -> None:
        """Stores the results of sources that are dropped, or of all at the end."""
        for part in fields(state):
            getattr(self.selector_state, part.name).index_copy_(0, owner, getattr(state, part.name))

    def at(self, sources: Tensor, steps: int | None = None) -> BackpointerTables:
        """The tables of some sources, without the beam tree: their first steps, or all."""
        state = select(self.selector_state, sources)
        tokens, parents = (each[:steps].index_select(1, sources) for each in (self.tokens, self.parents))
        return BackpointerTables(tokens, parents, None, state)


def backtrace(tables: BackpointerTables, most: int | None = None) -> list[list[Hypothesis]]:
    """The best `most` finished texts of every source, by tracing the tables backwards on the host.

    A text whose score is NaN comes last.
    """
    state = tables.selector_state
    best = state.best.cpu()
    order = best.nan_to_num(nan=torch.finfo(best.dtype).min, neginf=NEVER).sort(dim=1, descending=True, stable=True).indices
    best, order = best.gather(1, order)[:, :most], order[:, :most]
    at, when, end = (part.cpu().gather(1, order) for part in (state.parent, state.when, state.token))
    steps = int(when.max()) + 1
    tokens, parents = tables.tokens[:steps].cpu(), tables.parents[:steps].cpu()
    places = [at]
    for t in range(steps - 1, 0, -1):
        at = torch.where(t < when, parents[t].gather(1, at), at) if parents.size(2) > 1 else at
        places.append(at)
    step = torch.arange(steps)[:, None, None]
    read = torch.where(step < when, tokens.gather(2, torch.stack(places[::-1])), -1)
    scores, lines = best.tolist(), torch.where(step == when, end, read).permute(1, 2, 0).tolist()
    return [
        [
            Hypothesis(_score(score), [each for each in line if each >= 0])
            for score, line in zip(*pair, strict=True)
            if score != NEVER
        ]
        for pair in zip(scores, lines, strict=True)
    ]


def or_lost(texts: list[Hypothesis]) -> list[Hypothesis]:
    """The texts of a source. If there are none, its numbers were not finite, and it has one empty text with the score NaN."""
    return texts or [Hypothesis(math.nan, [EOS])]


def _score(score: float) -> float:
    """The score of a text, without what it forfeited."""
    return score + WORST_SCORE if score <= -WORST_SCORE / 2 else score
