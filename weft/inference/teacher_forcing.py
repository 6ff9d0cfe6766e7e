"""Teacher forcing of one given target: the log-probabilities at each token, and the attention weights.

Shapes: T target tokens · S source tokens · V vocabulary · H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.attention.base import Use
from weft.attention.core.recording import first_row, record
from weft.batch import BOS, Source
from weft.inference.predictor import Weights
from weft.models.base import Model


@dataclass
class Forced:
    """logp [T, V]: log-probabilities of all tokens at every position · weights [H, T, S] and use of each layer that has any."""

    logp: Tensor
    weights: dict[str, Weights]
    uses: dict[str, Use]


@torch.inference_mode()
def force(model: Model, source: Sequence[int], target: Sequence[int]) -> Forced:
    """Feeds `target` to the decoder. Both are ids as the model reads and writes them."""
    device = model.device
    fed = torch.tensor([[BOS, *target[:-1]]], device=device)
    with record(model) as tape:
        encoded = model.encode(Source(torch.tensor([list(source)], device=device)))
        logits = model.decoder(fed, model.decoder.start(encoded)).logits
    return Forced(logits[0].float().log_softmax(-1), *first_row(model, tape))
