"""A linear-chain conditional random field (Lafferty et al. 2001) over the tags of a sentence.

The score of tags y is start[y₁] + Σ emissions[t, yₜ] + Σ moves[yₜ, yₜ₊₁] + end[y_T]. If start, moves and end are 0, it is a
softmax for each word. Transitions that a tagging scheme forbids have probability 0 and are never found.

Shapes: B rows · T words · C tags.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

NEVER = -1e4
"""Is added for a forbidden transition where sums are formed: its share of them is exactly 0, and gradients stay finite."""


@dataclass(frozen=True)
class Allowed:
    """Which tags may begin a sentence [C], follow each other [C, C] (from, to), and end a sentence [C]."""

    start: Tensor
    moves: Tensor
    end: Tensor

    @staticmethod
    def everything(tags: int) -> Allowed:
        return Allowed(torch.ones(tags).bool(), torch.ones(tags, tags).bool(), torch.ones(tags).bool())


class LinearChain(nn.Module):
    """Scores, sums over and finds the tags of sentences. Rows are padded on the right; `ok` [B, T] is True on words."""

    start_allowed: Tensor
    moves_allowed: Tensor
    end_allowed: Tensor

    def __init__(self, tags: int, allowed: Allowed | None = None) -> None:
        super().__init__()
        self.start, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))
        self.moves = nn.Parameter(torch.zeros(tags, tags))
        allowed = allowed or Allowed.everything(tags)
        for name in ("start", "moves", "end"):
            self.register_buffer(f"{name}_allowed", getattr(allowed, name), persistent=False)

    def _scores(self, never: float) -> tuple[Tensor, Tensor, Tensor]:
        """start, moves and end in float32 or better, with `never` where they are forbidden."""
        parts = [(self.start, self.start_allowed), (self.moves, self.moves_allowed), (self.end, self.end_allowed)]
        start, moves, end = (_precise(scores).masked_fill(~allowed, never) for scores, allowed in parts)
        return start, moves, end

    def log_partition(self, emissions: Tensor, ok: Tensor) -> Tensor:
        """[B]: the logarithm of the sum of exp(score) over all tags of each row; 0 for a row without words."""
        emissions = _precise(emissions)
        start, moves, end = self._scores(NEVER)
        sums = start + emissions[:, 0]
        for emitted, here in zip(emissions.unbind(1)[1:], ok.unbind(1)[1:], strict=True):
            longer = (sums[:, :, None] + moves).logsumexp(1) + emitted
            sums = torch.where(here[:, None], longer, sums)
        return torch.where(ok[:, 0], (sums + end).logsumexp(1), 0.0)

    def score(self, emissions: Tensor, tags: Tensor, ok: Tensor) -> Tensor:
        """[B]: the score of the given tags [B, T]; 0 for a row without words."""
        start, moves, end = self._scores(NEVER)
        tags = tags.where(ok, 0)
        emitted = _precise(emissions).gather(2, tags[..., None])[..., 0].where(ok, 0.0).sum(1)
        moved = moves[tags[:, :-1], tags[:, 1:]].where(ok[:, 1:], 0.0).sum(1)
        last = tags.gather(1, (ok.sum(1, keepdim=True) - 1).clamp_min(0))[:, 0]
        return torch.where(ok[:, 0], start[tags[:, 0]] + emitted + moved + end[last], 0.0)

    def log_probability(self, emissions: Tensor, tags: Tensor, ok: Tensor) -> Tensor:
        """[B]: the log-probability of the given tags."""
        return self.score(emissions, tags, ok) - self.log_partition(emissions, ok)

    def best(self, emissions: Tensor, ok: Tensor) -> Tensor:
        """[B, T]: the tags with the highest score (Viterbi); 0 on padding. Forbidden transitions do not occur."""
        emissions = _precise(emissions)
        start, moves, end = self._scores(-torch.inf)
        scores, sources = start + emissions[:, 0], []
        stay = torch.arange(scores.size(1), device=scores.device)
        for emitted, here in zip(emissions.unbind(1)[1:], ok.unbind(1)[1:], strict=True):
            longer, source = (scores[:, :, None] + moves).max(1)
            scores = torch.where(here[:, None], longer + emitted, scores)
            sources.append(torch.where(here[:, None], source, stay))
        tags = [(scores + end).argmax(1)]
        for source in reversed(sources):
            tags.append(source.gather(1, tags[-1][:, None])[:, 0])
        return torch.stack(tags[::-1], 1).where(ok, 0)


def _precise(scores: Tensor) -> Tensor:
    """At least float32: sums over sentences need more than half precision."""
    return scores if scores.dtype == torch.float64 else scores.float()
