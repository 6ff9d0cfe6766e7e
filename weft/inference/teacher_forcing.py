"""Teacher forcing of one given target: the log-probabilities at each token, and the attention weights.

Shapes: T target tokens · S source tokens · V vocabulary · H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weft.attention.core.recording import record
from weft.batch import BOS, Source
from weft.inference.predictor import Weights
from weft.models.base import Model


@dataclass
class Forced:
    """logp [T, V]: log-probabilities of all tokens at every position · weights [H, T, S] of every layer that has any."""

    logp: Tensor
    weights: dict[str, Weights]


@torch.inference_mode()
def force(model: Model, source: Sequence[int], target: Sequence[int]) -> Forced:
    """Feeds `target` to the decoder. Both are ids as the model reads and writes them."""
    device = model.device
    fed = torch.tensor([[BOS, *target[:-1]]], device=device)
    with record(model) as tape:
        encoded = model.encode(Source(torch.tensor([list(source)], device=device)))
        logits = model.decoder(fed, model.decoder.start(encoded)).logits
    weights = {name: np.asarray(torch.cat(each, 2)[0].float().cpu()) for name, each in tape.items()}
    return Forced(logits[0].float().log_softmax(-1), weights)
