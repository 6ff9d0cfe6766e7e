"""Connectionist temporal classification (Graves et al. 2006): targets that are aligned with longer sequences of vectors.

A path has one symbol per vector. Its text is what remains if repeated symbols are merged and then blanks are removed. The loss
sums the probabilities of all paths of a text. The blank has an id of its own; it is never PAD. torch's loss copies lengths to
the host, so a step with it could not be recorded on a GPU. Here nothing waits for the device.

Shapes: B rows · T vectors · V symbols, the blank included · U tokens of a target · L = 2 U + 1 places of a path, of which the
odd ones are the tokens.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.layers.linear_norm_dropout import accumulation_dtype

IMPOSSIBLE = -1e30
"""The log-probability of what is impossible; finite, so that sums of it are not NaN."""


@dataclass(frozen=True)
class CtcLoss:
    """nll [B]: −log p of each target, 0 where there is no path · alignable [B]: whether there is a path."""

    nll: Tensor
    alignable: Tensor


def ctc_loss(logits: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, *, blank: int) -> CtcLoss:
    """The loss of targets [B, U] given logits [B, T, V], of which each row uses the first `lengths` and `target_lengths`.

    A target that is too long for its row has no path: it adds nothing to the loss, and `alignable` says so. Count such rows.
    """
    possible = alignable(lengths, targets, target_lengths)
    if logits.size(1) == 0:
        return CtcLoss(logits.sum((1, 2)), possible)
    places = _places(targets, blank)
    logp = logits.log_softmax(-1, dtype=accumulation_dtype(logits.dtype))
    emitted = logp.gather(2, _symbols(targets, blank)[:, None].expand(-1, logp.size(1), -1))
    nll = _AllPaths.apply(emitted, places, lengths, target_lengths)
    return CtcLoss(nll.where(possible & (lengths > 0), 0.0), possible)


def alignable(lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
    """[B] bool: whether each target has a path. A token that repeats the one before it needs a blank between them."""
    place = torch.arange(1, targets.size(1), device=targets.device)
    repeats = (targets[:, 1:] == targets[:, :-1]) & (place < target_lengths[:, None])
    return lengths >= target_lengths + repeats.sum(1)


class _AllPaths(torch.autograd.Function):
    """−log Σ over paths of Π p [B], given log p [B, T, 1 + U] of the blank and the tokens of each target.

    Its gradient is minus the probability of each symbol at each vector, given the text. Sums over the paths that lead to a
    place and over those that leave it are one recursion, because the latter are paths of the reversed text.
    """

    @staticmethod
    def forward(ctx: Any, emitted: Tensor, places: Tensor, lengths: Tensor, counts: Tensor) -> Tensor:
        rows = emitted.size(0)
        spread = _spread(emitted)
        frame, place = (torch.arange(size, device=emitted.device) for size in spread.shape[1:])
        back = (lengths[:, None] - 1 - frame).clamp_min(0)[..., None].expand_as(spread)
        turned = (2 * counts[:, None] - place).clamp_min(0)
        mirror = turned[:, None].expand_as(spread)
        both = torch.cat([spread, spread.gather(1, back).gather(2, mirror)])
        sums = _sums(both, _skips(torch.cat([places, places.gather(1, turned)])))
        last = sums[:rows].gather(1, back[:, :1])[:, 0]
        ends = 2 * counts[:, None]
        token = last.gather(1, (ends - 1).clamp_min(0)).masked_fill(ends == 0, IMPOSSIBLE)
        total = torch.logaddexp(last.gather(1, ends), token)
        after = sums[rows:].gather(1, back).gather(2, mirror)
        inside = (frame < lengths[:, None])[..., None] & (place <= ends)[:, None] & (total > IMPOSSIBLE / 2)[..., None]
        share = (sums[:rows] + after - spread - total[..., None]).exp().where(inside, 0.0)
        ctx.save_for_backward(torch.cat([share[..., ::2].sum(-1, keepdim=True), share[..., 1::2]], -1))
        return -total[:, 0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (share,) = ctx.saved_tensors
        return -share * grad[:, None, None], None, None, None


def _sums(emitted: Tensor, skips: Tensor) -> Tensor:
    """[B, T, L]: the log-probabilities of all beginnings of paths that are at a place."""
    score = _first(emitted)
    scores = [score]
    for frame in emitted.unbind(1)[1:]:
        came = torch.logaddexp(score, _shift(score, 1))
        score = torch.logaddexp(came, _shift(score, 2) + skips) + frame
        scores.append(score)
    return torch.stack(scores, 1)


def best_alignment(logits: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, *, blank: int) -> Tensor:
    """[B, T]: the most probable path of each target (Viterbi); blanks behind a row's length, and in rows without a path."""
    rows, frames, _ = logits.shape
    if frames == 0:
        return targets.new_zeros(rows, 0)
    places = _places(targets, blank)
    # Denominators of the softmax are the same for all paths.
    symbols = _symbols(targets, blank)[:, None].expand(-1, frames, -1)
    emitted = _spread(logits.detach().gather(2, symbols).to(accumulation_dtype(logits.dtype)))
    skips, score = _skips(places), _first(emitted)
    steps = []
    for t, frame in enumerate(emitted.unbind(1)[1:], 1):
        best, step = torch.stack([score, _shift(score, 1), _shift(score, 2) + skips]).max(0)
        running = (t < lengths)[:, None]
        score = torch.where(running, best + frame, score)
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
    real = (frame < lengths[:, None]) & (final > IMPOSSIBLE / 2)[:, None]
    return symbols.where(real, blank)


def _symbols(targets: Tensor, blank: int) -> Tensor:
    """[B, 1 + U]: the blank and the tokens."""
    return F.pad(targets, (1, 0), value=blank)


def _places(targets: Tensor, blank: int) -> Tensor:
    """[B, L]: the tokens with a blank before, between and after them."""
    places = targets.new_full((targets.size(0), 2 * targets.size(1) + 1), blank)
    places[:, 1::2] = targets
    return places


def _spread(emitted: Tensor) -> Tensor:
    """[B, T, L]: the values of `_places`, given those of `_symbols`."""
    size = 2 * emitted.size(-1) - 1
    spread = emitted[..., :1].repeat(1, 1, size)
    spread[..., 1::2] = emitted[..., 1:]
    return spread


def _skips(places: Tensor) -> Tensor:
    """[B, L]: 0 where a path may come from two places before, skipping a blank: at a token unless the last one is the same."""
    skips = torch.full(places.shape, IMPOSSIBLE, device=places.device)
    skips[:, 3::2].masked_fill_(places[:, 3::2] != places[:, 1:-2:2], 0.0)
    return skips


def _first(emitted: Tensor) -> Tensor:
    """[B, L]: the log-probabilities of paths after one vector: they begin with a blank or with the first token."""
    score = torch.full_like(emitted[:, 0], IMPOSSIBLE)
    score[:, :2] = emitted[:, 0, :2]
    return score


def _shift(score: Tensor, by: int) -> Tensor:
    """Each place gets the score of the place `by` before it."""
    return F.pad(score, (by, 0), value=IMPOSSIBLE)[:, : score.size(1)]
