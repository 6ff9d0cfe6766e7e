"""Connectionist temporal classification (Graves et al. 2006): targets that are aligned with longer sequences of vectors.

A path has one symbol per vector. Its text is what remains if repeated symbols are merged and then blanks are removed. The loss
sums the probabilities of all paths of a text. The blank has an id of its own; it is never PAD.

Shapes: B rows · T vectors · V symbols, the blank included · U tokens of a target · L = 2 U + 1 places of a path.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

NEVER = -1e30
"""The log-probability of what is impossible; finite, so that sums of it are not NaN."""


@dataclass(frozen=True)
class CtcLoss:
    """nll [B]: −log p of each target, 0 where there is no path · alignable [B]: whether there is a path."""

    nll: Tensor
    alignable: Tensor


def ctc_loss(logits: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, *, blank: int) -> CtcLoss:
    """The loss of targets [B, U] given logits [B, T, V], of which each row uses the first `lengths` and `target_lengths`.

    A target that is too long for its row has no path: it adds nothing to the loss, and `alignable` says so. Count such rows, as
    `zero_infinity` alone would hide them.
    """
    logp = logits.float().log_softmax(-1)
    possible = alignable(lengths, targets, target_lengths)
    nll = F.ctc_loss(logp.transpose(0, 1), targets, lengths, target_lengths, blank, reduction="none", zero_infinity=True)
    return CtcLoss(nll.where(possible, 0.0), possible)


def alignable(lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
    """[B] bool: whether each target has a path. A token that repeats the one before it needs a blank between them."""
    place = torch.arange(1, targets.size(1), device=targets.device)
    repeats = (targets[:, 1:] == targets[:, :-1]) & (place < target_lengths[:, None])
    return lengths >= target_lengths + repeats.sum(1)


def best_alignment(logits: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, *, blank: int) -> Tensor:
    """[B, T]: the most probable path of each target (Viterbi); blanks behind a row's length, and in rows without a path."""
    logp = logits.detach().float().log_softmax(-1)
    rows, frames, _ = logp.shape
    if frames == 0:
        return targets.new_zeros(rows, 0)
    places = _places(targets, blank)  # [B, L]
    # From a token, a path may skip the blank before it unless the token before that is the same.
    skips = torch.zeros_like(places, dtype=torch.bool)
    skips[:, 3::2] = places[:, 3::2] != places[:, 1:-2:2]
    emitted = logp.gather(2, places[:, None].expand(-1, frames, -1))  # [B, T, L]
    score = torch.full_like(emitted[:, 0], NEVER)
    score[:, :2] = emitted[:, 0, :2]
    steps = []
    for t in range(1, frames):
        came = torch.stack([score, _shift(score, 1), _shift(score, 2).where(skips, NEVER)], -1)
        best, step = came.max(-1)
        running = (t < lengths)[:, None]
        score = torch.where(running, best + emitted[:, t], score)
        steps.append(torch.where(running, step, 0))
    return _trace(score, steps, places, lengths, target_lengths, blank)


def _trace(score: Tensor, steps: list[Tensor], places: Tensor, lengths: Tensor, counts: Tensor, blank: int) -> Tensor:
    """Reads the best path backwards from the last blank or the last token, whichever is more probable."""
    last = 2 * counts[:, None]
    ends = torch.cat([last, (last - 1).clamp_min(0)], 1)
    final, which = score.gather(1, ends).max(1)
    at = ends.gather(1, which[:, None])
    path = [at]
    for step in reversed(steps):
        at = at - step.gather(1, at)
        path.append(at)
    symbols = places.gather(1, torch.cat(path[::-1], 1))
    frame = torch.arange(len(path), device=places.device)
    real = (frame < lengths[:, None]) & (final > NEVER / 2)[:, None]
    return symbols.where(real, blank)


def _places(targets: Tensor, blank: int) -> Tensor:
    """[B, L]: the tokens with a blank before, between and after them."""
    places = targets.new_full((targets.size(0), 2 * targets.size(1) + 1), blank)
    places[:, 1::2] = targets
    return places


def _shift(score: Tensor, by: int) -> Tensor:
    """Each place gets the score of the place `by` before it."""
    return F.pad(score, (by, 0), value=NEVER)[:, : score.size(1)]
