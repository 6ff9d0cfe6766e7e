"""A linear-chain conditional random field (Lafferty et al. 2001) over the tags of a sentence.

The score of tags y is start[y₁] + Σ emissions[t, yₜ] + Σ moves[yₜ, yₜ₊₁] + end[y_T]. If start, moves and end are 0, it is a
softmax for each word. Transitions that a tagging scheme forbids have probability 0 and are never found.

Shapes: B rows · T words · C tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.layers.linear_norm_dropout import to_float32
from weft.tasks.tagging.metrics import Scheme, may_end, may_follow, may_start

FORBIDDEN = -1e4
"""The score of a forbidden transition where sums are formed: its share of them is exactly 0, and gradients stay finite."""


@dataclass(frozen=True)
class AllowedTransitions:
    """The tags that may begin a sentence [C], follow each other [C, C] (from, to), and end a sentence [C]."""

    start: Tensor
    moves: Tensor
    end: Tensor

    @staticmethod
    def of(tags: Sequence[str], scheme: Scheme) -> AllowedTransitions:
        """Those of a tagging scheme."""
        moves = [[may_follow(before, after, scheme) for after in tags] for before in tags]
        ends = [may_end(tag, scheme) for tag in tags]
        return AllowedTransitions(torch.tensor([may_start(tag) for tag in tags]), torch.tensor(moves), torch.tensor(ends))


class LinearChainCrf(nn.Module):
    """Scores, sums over and finds the tags of sentences. Rows are padded on the right; `mask` [B, T] is True on words."""

    start_allowed: Tensor
    moves_allowed: Tensor
    end_allowed: Tensor

    def __init__(self, tags: int, allowed: AllowedTransitions | None = None) -> None:
        super().__init__()
        self.start, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))
        self.moves = nn.Parameter(torch.zeros(tags, tags))
        for name in ("start", "moves", "end"):
            every = torch.ones_like(getattr(self, name), dtype=torch.bool)
            self.register_buffer(f"{name}_allowed", getattr(allowed, name) if allowed else every, persistent=False)

    def _scores(self, forbidden: float) -> tuple[Tensor, Tensor, Tensor]:
        """start, moves and end in float32 or better, with `forbidden` where they are forbidden."""
        parts = [(self.start, self.start_allowed), (self.moves, self.moves_allowed), (self.end, self.end_allowed)]
        start, moves, end = (to_float32(scores).masked_fill(~allowed, forbidden) for scores, allowed in parts)
        return start, moves, end

    def log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """[B]: the logarithm of the sum of exp(score) over all tags of each row; 0 for a row without words."""
        emissions = to_float32(emissions)
        start, moves, end = self._scores(FORBIDDEN)
        sums = start + emissions[:, 0]
        for emitted, here in zip(emissions.unbind(1)[1:], mask.unbind(1)[1:], strict=True):
            longer = (sums[:, :, None] + moves).logsumexp(1) + emitted
            sums = torch.where(here[:, None], longer, sums)
        return torch.where(mask[:, 0], (sums + end).logsumexp(1), 0.0)

    def score(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """[B]: the score of the given tags [B, T]; 0 for a row without words."""
        start, moves, end = self._scores(FORBIDDEN)
        tags = tags.where(mask, 0)
        emitted = to_float32(emissions).gather(2, tags[..., None])[..., 0].where(mask, 0.0).sum(1)
        moved = moves[tags[:, :-1], tags[:, 1:]].where(mask[:, 1:], 0.0).sum(1)
        last = tags.gather(1, (mask.sum(1, keepdim=True) - 1).clamp_min(0))[:, 0]
        return torch.where(mask[:, 0], start[tags[:, 0]] + emitted + moved + end[last], 0.0)

    def log_probability(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """[B]: the log-probability of the given tags."""
        return self.score(emissions, tags, mask) - self.log_partition(emissions, mask)

    def viterbi(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """[B, T]: the tags with the highest score; 0 on padding. Forbidden transitions do not occur."""
        emissions = to_float32(emissions)
        start, moves, end = self._scores(-torch.inf)
        scores, sources = start + emissions[:, 0], []
        stay = torch.arange(scores.size(1), device=scores.device)
        for emitted, here in zip(emissions.unbind(1)[1:], mask.unbind(1)[1:], strict=True):
            longer, source = (scores[:, :, None] + moves).max(1)
            scores = torch.where(here[:, None], longer + emitted, scores)
            sources.append(torch.where(here[:, None], source, stay))
        tags = [(scores + end).argmax(1)]
        for source in reversed(sources):
            tags.append(source.gather(1, tags[-1][:, None])[:, 0])
        return torch.stack(tags[::-1], 1).where(mask, 0)
