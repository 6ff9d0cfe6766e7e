"""Likelihoods and predictions for whole targets, computed without holding all logits at once.

Shapes: B rows · T target positions · D width · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from weft.batch import PAD
from weft.layers.readout import IMPOSSIBLE
from weft.models.base import Decoder

CHUNK = 4096
"""Tokens whose logits are held at once; at least one position per row."""

Choice = Literal["best", "drawn"]


def log_likelihoods(decoder: Decoder, hidden: Tensor, labels: Tensor, never: Sequence[int] = ()) -> Tensor:
    """[B, T]: log p of each label, at least −IMPOSSIBLE; 0 where it is PAD. The tokens `never` have no probability."""
    pieces = zip(_logits(decoder, hidden, never), labels.split(extent(hidden), 1), strict=True)
    found = [logits.gather(-1, gold[..., None])[..., 0] - logits.logsumexp(-1) for logits, gold in pieces]
    return torch.cat(found, 1).clamp_min(-IMPOSSIBLE).where(labels != PAD, 0.0)


@torch.no_grad()
def predictions(decoder: Decoder, hidden: Tensor, choice: Choice) -> Tensor:
    """[B, T]: the most probable token after each hidden state, or a sample."""
    found = []
    for logits in _logits(decoder, hidden):
        # The argmax of logit − log(exponential noise) is a sample from the softmax (Gumbel-max) that does not need the host.
        scores = logits if choice == "best" else logits - torch.empty_like(logits).exponential_().log()
        found.append(scores.argmax(-1))
    return torch.cat(found, 1)


def _logits(decoder: Decoder, hidden: Tensor, never: Sequence[int] = ()) -> Iterator[Tensor]:
    """[B, t, V] in at least float32, for one slice of positions after the other."""
    for states in hidden.split(extent(hidden), 1):
        logits = decoder.logits(states)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        yield logits.index_fill(-1, torch.tensor(never, device=logits.device), -torch.inf) if never else logits


def extent(hidden: Tensor) -> int:
    """Positions per slice, so that the logits of a slice have about `CHUNK` rows."""
    return max(1, CHUNK // hidden.size(0))
