"""Helpers for limit tests of patterns: self-attention over a small sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site, Use
from weft.config.registry import build
from weft.layers.decoder_state import State

DIM, HEADS = 16, 4


def make(spec: dict[str, Any], use: Use) -> Attention:
    torch.manual_seed(3)
    part: Attention = build("weft.attention:ATTENTIONS", spec, Site(use, DIM, HEADS))
    with torch.no_grad():
        for parameter in part.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return part.eval()


def whole(part: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = part(x, part.start(rows=x.size(0)), append=x).context
    return found


def step(part: Attention, token: Tensor, state: State) -> Attended:
    found: Attended = part(token, state, append=token)
    return found


def same(a: Tensor, b: Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-3)
