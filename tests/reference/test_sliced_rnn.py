"""Sliced recurrent networks against a loop over slices of slices, and the limit without slices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weft.data.batch import Layout, Source
from weft.models.base import Encoder, Sizes
from weft.models.encoder_decoder import build_encoder
from weft_contract.mechanism_entries import perturbed, same

LENGTHS = [16, 7, 0, 1, 13]


def make(kind: str = "sliced_rnn", **options: Any) -> Encoder:
    torch.manual_seed(2)
    spec = {"kind": "composed", "encoder": {"kind": kind, "dim": 6, "embedding": 5, "cell": "rnn", "dropout": 0.0, **options}}
    return perturbed(build_encoder(spec, Sizes(9, 9)))


def last_state(layer: Any, vectors: list[Tensor]) -> Tensor:
    h, cell = torch.zeros(6), layer.rnn
    for x in vectors:
        h = torch.tanh(cell.weight_ih_l0 @ x + cell.bias_ih_l0 + cell.weight_hh_l0 @ h + cell.bias_hh_l0)
    return h


@torch.no_grad()
@pytest.mark.parametrize("known", [True, False])
def test_it_is_its_equations(known: bool) -> None:
    """Yu & Liu 2018, section 3: h⁰ of each of the n² smallest slices, h¹ of n of these, and h² of n of those, F."""
    encoder, layout = make(slices=3, depth=2), Layout.padded(LENGTHS, 17)
    given = layout if known else Layout(layout.segments, layout.positions, None, layout.longest)
    tokens = torch.randint(3, 9, (5, 17))
    found = encoder(Source(tokens, given))
    assert found.memory.shape == (5, 1, 6) and found.layout.lengths.tolist() == [1, 1, 0, 1, 1]
    for row, length in enumerate(LENGTHS):
        x = [encoder.front.table.weight[token] * 5**0.5 for token in tokens[row, :length]]
        size = -(-length // 9) or 1
        lowest = [last_state(encoder.layers[0], x[at : at + size]) for at in range(0, length, size)]
        middle = [last_state(encoder.layers[1], lowest[at : at + 3]) for at in range(0, len(lowest), 3)]
        same(found.memory[row, 0], last_state(encoder.layers[2], middle), f"row {row}")
        same(found.summary[row], last_state(encoder.layers[2], middle))


@torch.no_grad()
@pytest.mark.parametrize("cell", ["gru", "lstm", "sru"])
def test_without_slices_it_is_a_recurrent_encoder(cell: str) -> None:
    sliced, plain = make(depth=0, memory="all", cell=cell), make("rnn", bidirectional=False, cell=cell)
    plain.load_state_dict({name.replace("layers.", "stack.layers."): value for name, value in sliced.state_dict().items()})
    source = Source(torch.randint(3, 9, (5, 17)), Layout.padded(LENGTHS, 17))
    mine, other = sliced(source), plain(source)
    same(mine.memory[source.layout.mask], other.memory[source.layout.mask])
    for a, b in zip(mine.final[0], other.final[0], strict=True):
        same(a, b)


def test_all_states_of_the_highest_layer_are_a_memory() -> None:
    encoder, tokens = make(slices=2, depth=1, memory="all", bidirectional=True), torch.randint(3, 9, (3, 8))
    found = encoder(Source(tokens, Layout.padded([8, 5, 1], 8)))
    assert found.memory.shape == (3, 2, 6) and found.layout.lengths.tolist() == [2, 2, 1]
