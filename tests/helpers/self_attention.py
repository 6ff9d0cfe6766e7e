"""Self-attention over a small sequence, for reference tests of sparsity patterns."""

from typing import Any

import torch
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site, Use
from weft.config.registry import build
from weft.layers.decoder_state import State
from weft_contract.mechanism_entries import perturbed

DIM, HEADS = 16, 4


def make(spec: dict[str, Any], use: Use) -> Attention:
    torch.manual_seed(3)
    part: Attention = build("weft.attention:ATTENTIONS", spec, Site(use, DIM, HEADS))
    return perturbed(part, 0.1)


def whole(part: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = part(x, part.init_state(rows=x.size(0)), append=x).context
    return found


def step(part: Attention, token: Tensor, state: State) -> Attended:
    found: Attended = part(token, state, append=token)
    return found
