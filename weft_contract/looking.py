"""Helpers for limit tests of single-head attentions: a small cross-attention, its queries and its memory."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from weft.attention.base import Attended, Attention, Site
from weft.data.batch import Layout

DIM, QUERIES, KEYS = 8, 35, 13
Part = TypeVar("Part", bound=nn.Module)


def site(memory: int = DIM) -> Site:
    return Site("cross", DIM, memory=memory)


def scattered(part: Part, by: float = 0.5) -> Part:
    """The part with every parameter moved from its initial value, in evaluation mode."""
    with torch.no_grad():
        for parameter in part.parameters():
            parameter += by * torch.randn_like(parameter)
    return part.eval()


def pair(rows: int = 2, keys: int = KEYS, queries: int = QUERIES, memory: int = DIM) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, queries, DIM), torch.randn(rows, keys, memory)


def look(part: Attention, queries: Tensor, memory: Tensor, lengths: list[int] | None = None) -> Attended:
    layout = None if lengths is None else Layout.padded(lengths, memory.size(1))
    return part(queries, part.start(memory, layout), need_weights=True)


def same(a: Tensor, b: Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-3)


def weights_of(found: Attended) -> Tensor:
    """[B, T, S]."""
    assert found.weights is not None
    return found.weights[:, 0]
