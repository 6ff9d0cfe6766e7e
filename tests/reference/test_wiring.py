"""Which encoder layer each decoder layer of a Transformer reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.models.base import Encoded, Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.transformer import EncoderWiring

SMALL: dict[str, Any] = {"dim": 16, "heads": 2, "feedforward": 16, "dropout": 0.0}


def transformer(wiring: str, encoder_layers: int = 3, decoder_layers: int = 3, **options: Any) -> Model:
    torch.manual_seed(0)
    sizes = Sizes(19, 19, shared=True)
    layers = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    return build_model({"kind": "transformer", **SMALL, **layers, "wiring": wiring, **options}, sizes).eval()


def ids(extent: int) -> Tensor:
    return torch.randint(4, 19, (2, extent), generator=torch.Generator().manual_seed(1))


def memories(count: int) -> Encoded:
    layers = [torch.randn(2, 7, 16) for _ in range(count)]
    return Encoded(layers[-1], Layout.padded([7, 4]), layers=layers)


def test_last_reads_the_last_layer() -> None:
    source = memories(3)
    assert [found is source.memory for found in EncoderWiring("last", 3, 2)(source)] == [True, True]


def test_same_reads_the_layer_of_the_same_height() -> None:
    source = memories(3)
    for found, wanted in zip(EncoderWiring("same", 3, 3)(source), source.layers, strict=True):
        assert found is wanted


def test_mix_is_the_weighted_mean_by_its_formula() -> None:
    source, wires = memories(4), EncoderWiring("mix", 4, 2)
    assert wires.mixture is not None
    for found in wires(source):
        torch.testing.assert_close(found, torch.stack(source.layers).mean(0))
    torch.nn.init.normal_(wires.mixture)
    for found, scores in zip(wires(source), wires.mixture, strict=True):
        total = sum(score.exp() * layer for score, layer in zip(scores, source.layers, strict=True))
        torch.testing.assert_close(found, total / scores.exp().sum())


def test_a_mix_of_the_last_layer_alone_is_the_conventional_wiring() -> None:
    plain, mixed = transformer("last", decoder_layers=2), transformer("mix", decoder_layers=2)
    mixed.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        mixed.decoder.wires.mixture[:, -1] = 100.0
    one, other = (model(Source(ids(9)), ids(5)).hidden for model in (plain, mixed))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_same_looks_at_each_height_of_the_encoder(norm: str) -> None:
    """A decoder layer depends on the encoder layers up to its own height only."""
    model, layout = transformer("same", norm=norm), Layout.padded([9, 6])
    source = model.encode(Source(ids(9), layout))
    assert len(source.layers) == 3 and source.layers[-1] is source.memory
    state = model.decoder.init_state(source)
    for layer, look, memory in zip(model.decoder.layers, state.source, source.layers, strict=True):
        torch.testing.assert_close(look.k, layer.cross.init_state(memory, layout).k)
    if norm == "pre":
        for memory in source.layers:
            torch.testing.assert_close(memory.mean(-1), torch.zeros(2, 9), atol=1e-5, rtol=0)


def test_same_needs_equal_heights() -> None:
    with pytest.raises(ConfigError, match=r"model\.wiring: same needs .* not 3 and 2; make them equal, or use wiring: mix"):
        transformer("same", decoder_layers=2)
