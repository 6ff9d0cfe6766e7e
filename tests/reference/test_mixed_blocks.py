"""Recurrent layers and convolutions in Transformer blocks, at once and step by step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from weft.attention.base import Site
from weft.attention.mixers.convolution_and_recurrence import RecurrentMixer
from weft.config.sections import load_config
from weft.data.batch import Layout, Source
from weft.layers.decoder_state import leaves
from weft.layers.recurrent import CellKind, RecurrentLayer
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft_contract.mechanism_entries import perturbed, same

DIM, LENGTHS = 16, (40, 26, 1)
MIXED = ("mixed-rnn", "mixed-cnn")


def mixer(use: str, cell: CellKind, layers: int) -> RecurrentMixer:
    return perturbed(RecurrentMixer(Site(use, DIM), cell=cell, layers=layers))


def one_way(layer: RecurrentLayer, way: int) -> nn.Module:
    """One direction of a layer as a separate torch layer."""
    alone = type(layer.rnn)(layer.rnn.input_size, layer.rnn.hidden_size, batch_first=True)
    for mine, theirs in zip(alone.all_weights[0], layer.rnn.all_weights[way], strict=True):
        mine.data.copy_(theirs)
    return alone


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent_is_the_layer_run_on_each_row_alone(layers: int, cell: CellKind) -> None:
    part, x = mixer("causal", cell, layers), torch.randn(3, 40, DIM)
    mixed = part(x, part.init_state(rows=3), layout=Layout.padded(LENGTHS))
    for row, length in enumerate(LENGTHS):
        outputs = x[row : row + 1, :length]
        for layer, after in zip(part.stack.layers, mixed.state, strict=True):
            outputs, last = layer.rnn(outputs)
            for found, wanted in zip(after, (last,) if cell == "gru" else last, strict=True):
                same(found[row], wanted[0, 0])
        same(mixed.context[row : row + 1, :length], part.out(outputs))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_encoder_is_a_layer_each_way(cell: CellKind) -> None:
    part, x = mixer("encoder", cell, 1), torch.randn(3, 40, DIM)
    mixed = part(x, part.init_state(rows=3), layout=Layout.padded(LENGTHS)).context
    forth, back = (one_way(part.stack.layers[0], way) for way in range(2))
    for row, length in enumerate(LENGTHS):
        alone = x[row : row + 1, :length]
        both = torch.cat([forth(alone)[0], back(alone.flip(1))[0].flip(1)], -1)
        same(mixed[row : row + 1, :length], part.out(both))


@pytest.mark.parametrize("use", ["encoder", "causal"])
def test_a_sequence_is_one_call_of_each_layer(use: str) -> None:
    part, calls = mixer(use, "gru", 2), []
    for layer in part.stack.layers:
        layer.rnn.register_forward_hook(lambda *_: calls.append(1))
    part(torch.randn(3, 40, DIM), part.init_state(rows=3), layout=Layout.padded(LENGTHS))
    assert len(calls) == 2


def mixed_model(recipe: str) -> Model:
    """The model of a recipe, made narrow."""
    options = {**load_config(recipe).model, "dim": DIM, "feedforward": DIM, "dropout": 0.0}
    model = build_model(options, Sizes(19, 19, shared=True))
    return model.eval()


@pytest.mark.parametrize("recipe", MIXED)
@torch.no_grad()
def test_a_step_costs_the_same_at_any_length(recipe: str) -> None:
    """The state of the self slots does not grow with the text, and is all that a step needs."""
    model, tokens = mixed_model(recipe), torch.randint(4, 19, (2, 30))
    source = model.encode(Source(torch.randint(4, 19, (2, 9))))
    whole = model.decoder(tokens, model.decoder.init_state(source)).logits
    state, sizes = model.decoder.init_state(source), set()
    for t in range(30):
        found = model.decoder(tokens[:, t : t + 1], state)
        state = found.state
        same(found.logits, whole[:, t : t + 1])
        sizes.add(tuple(leaf.shape for leaf in leaves(state.own)))
    assert len(sizes) == 1
