"""Likelihoods and predictions for whole targets, computed without holding all logits at once.

Shapes: B rows · T target positions · D width · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from weft.data.batch import PAD
from weft.layers.linear import accumulation_dtype
from weft.losses.cross_entropy import IMPOSSIBLE
from weft.models.base import Decoder

CHUNK = 4096
"""Tokens whose logits are held at once; at least one position per row."""

Choice = Literal["best", "drawn"]


def log_likelihoods(decoder: Decoder, hidden: Tensor, labels: Tensor, never: Sequence[int] = ()) -> Tensor:
    """[B, T]: log p of each label, at least −IMPOSSIBLE; 0 where it is PAD. The tokens `never` have no probability."""
    pieces = zip(hidden.split(extent(hidden), 1), labels.split(extent(hidden), 1), strict=True)
    found = [computed_again(_likelihoods, decoder, *each, never) for each in pieces]
    return torch.cat(found, 1).clamp_min(-IMPOSSIBLE).where(labels != PAD, 0.0)


def computed_again(work: Callable[..., Tensor], *given: Any) -> Tensor:
    """`work(*given)`, which is done again for the gradient instead of keeping what it needs. It may draw no random numbers."""
    if not torch.is_grad_enabled():
        return work(*given)
    found: Tensor = checkpoint(work, *given, use_reentrant=False, preserve_rng_state=False)
    return found


def _likelihoods(decoder: Decoder, hidden: Tensor, labels: Tensor, never: Sequence[int]) -> Tensor:
    logits = _logits(decoder, hidden, never)
    return logits.gather(-1, labels[..., None])[..., 0] - logits.logsumexp(-1)


@torch.no_grad()
def predictions(decoder: Decoder, hidden: Tensor, choice: Choice) -> Tensor:
    """[B, T]: the most probable token after each hidden state, or a sample."""
    found = []
    for states in hidden.split(extent(hidden), 1):
        logits = _logits(decoder, states)
        # The argmax of logit − log(exponential noise) is a sample from the softmax (Gumbel-max) that does not need the host.
        scores = logits if choice == "best" else logits - torch.empty_like(logits).exponential_().log()
        found.append(scores.argmax(-1))
    return torch.cat(found, 1)


def _logits(decoder: Decoder, hidden: Tensor, never: Sequence[int] = ()) -> Tensor:
    """[B, t, V] in at least float32, for a slice of positions."""
    logits = decoder.logits(hidden)
    logits = logits.to(accumulation_dtype(logits.dtype))
    return logits.index_fill(-1, torch.tensor(never, device=logits.device), -torch.inf) if never else logits


def extent(hidden: Tensor) -> int:
    """Positions per slice, so that the logits of a slice have about `CHUNK` rows."""
    return max(1, CHUNK // hidden.size(0))
