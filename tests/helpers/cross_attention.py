"""A small cross-attention, its queries and its memory, for reference tests of single-head attentions."""

import torch
from torch import Tensor

from weft.attention.base import Attended, Attention, Site
from weft.data.batch import Layout

DIM, QUERIES, KEYS = 8, 35, 13


def site(memory: int = DIM) -> Site:
    return Site("cross", DIM, memory=memory)


def pair(rows: int = 2, keys: int = KEYS, queries: int = QUERIES, memory: int = DIM) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, queries, DIM), torch.randn(rows, keys, memory)


def attend(part: Attention, queries: Tensor, memory: Tensor, lengths: list[int] | None = None) -> Attended:
    layout = None if lengths is None else Layout.padded(lengths, memory.size(1))
    return part(queries, part.init_state(memory, layout), need_weights=True)


def weights_of(found: Attended) -> Tensor:
    """[B, T, S]."""
    assert found.weights is not None
    return found.weights[:, 0]
