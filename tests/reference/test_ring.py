"""Decoding with a window stores its last tokens and nothing else."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.self_attention import DIM, make, step, whole
from weft.layers.decoder_state import leaves, select
from weft_contract.mechanism_entries import same


@pytest.mark.parametrize("window", [1, 2, 5, 64])
def test_a_window_decodes_from_a_ring(window: int) -> None:
    """Token by token from the last few keys: the same as with a mask, and the store never grows."""
    part, count = make({"kind": "local", "window": window}, "causal"), 300
    x = torch.randn(2, count, DIM)
    wanted = whole(part, x)
    with torch.no_grad():
        state, sizes = part.init_state(rows=2, room=4096), set()
        for t in range(count):
            found = step(part, x[:, t : t + 1], state)
            state = found.state
            same(found.context, wanted[:, t : t + 1])
            sizes.add(sum(leaf.numel() for leaf in leaves(state)))
    assert sizes == {2 * (2 * DIM * window + 1)}


def test_the_ring_does_not_grow_for_thousands_of_steps() -> None:
    """Beams are reordered on the way, and each keeps its own tokens."""
    part, count, window = make({"kind": "local", "window": 6}, "causal"), 4096, 6
    x, beams = torch.randn(2, count, DIM), torch.tensor([1, 0])
    with torch.no_grad():
        state = part.init_state(rows=2, room=8)
        for t in range(count):
            found = step(part, x[:, t : t + 1], state)
            state = select(found.state, beams) if t == count - 3 else found.state
        assert sum(leaf.numel() for leaf in leaves(state)) == 2 * (2 * DIM * window + 1)
        swapped = torch.cat([x.flip(0)[:, -window:-2], x[:, -2:]], 1)
        same(found.context, whole(part, swapped)[:, -1:])


@pytest.mark.parametrize("first", [1, 30, 300])
def test_pieces_go_through_the_ring(first: int) -> None:
    part, x = make({"kind": "local", "window": 20}, "causal"), torch.randn(2, 400, DIM)
    state, found = part.init_state(rows=2, room=400), []
    for piece in x.split([first, 1, 330 - first, 69], 1):
        result = step(part, piece, state)
        state = result.state
        found.append(result.context)
    same(torch.cat(found, 1), whole(part, x))
