"""Blocks without norm, residual connection, feed-forward network or attention in every layer, written out by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import Source
from weft.errors import ConfigError
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model

SMALL: dict[str, Any] = {"dim": 16, "heads": 2, "feedforward": 24, "dropout": 0.0, "encoder_layers": 2, "decoder_layers": 3}


def transformer(**options: Any) -> Model:
    torch.manual_seed(0)
    return build_model({"kind": "transformer", **SMALL, **options}, Sizes(19, 19, shared=True)).eval()


def ids(extent: int) -> Tensor:
    return torch.randint(4, 19, (2, extent), generator=torch.Generator().manual_seed(1))


def around(block: Any, x: Tensor, run: Any, norm: str, residual: bool) -> Tensor:
    """The sub-layer `run` with its norm and its connection."""
    gains = () if norm == "none" else (block.norm.weight, block.norm.bias)
    update = run(F.layer_norm(x, (16,), *gains)) if norm == "pre" else run(x)
    x = x + update if residual else update
    return F.layer_norm(x, (16,), *gains) if norm == "post" else x


def network(part: Any, x: Tensor) -> Tensor:
    return F.linear(F.relu(F.linear(x, part.up.weight, part.up.bias)), part.down.weight, part.down.bias)


def mix(mixer: Any, x: Tensor) -> Tensor:
    return mixer(x, mixer.init_state(rows=2)).context


def attend(cross: Any, memory: Tensor, x: Tensor) -> Tensor:
    return cross(x, cross.init_state(memory, None)).context


OPTIONS = [
    {"norm": norm, "residual": residual, "feedforward": feedforward, "cross_layers": cross}
    for norm in ("pre", "post", "none")
    for residual in (True, False)
    for feedforward, cross in ((24, "all"), (24, "last"), (0, "all"), (0, "last"))
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda each: "-".join(map(str, each.values())))
@torch.no_grad()
def test_a_stack_is_its_formula(options: dict[str, Any]) -> None:
    model, source, target = transformer(**options), Source(ids(7)), ids(5)
    norm, residual = options["norm"], options["residual"]
    encoder, decoder = model.encoder, model.decoder
    x = encoder.front(source)[0]
    x = x + encoder.position(torch.arange(7)[None])
    for layer in encoder.layers:
        x = around(layer.around_mixer, x, partial(mix, layer.mixer), norm, residual)
        if options["feedforward"]:
            x = around(layer.around_network, x, partial(network, layer.network), norm, residual)
    memory = encoder.norm(x)
    torch.testing.assert_close(model.encode(source).memory, memory)
    x = decoder.embedding(target, torch.arange(5)[None])
    for place, layer in enumerate(decoder.layers):
        x = around(layer.around_mixer, x, partial(mix, layer.mixer), norm, residual)
        if options["cross_layers"] == "all" or place == 2:
            x = around(layer.around_cross, x, partial(attend, layer.cross, memory), norm, residual)
        else:
            assert layer.cross is None
        if options["feedforward"]:
            x = around(layer.around_network, x, partial(network, layer.network), norm, residual)
    torch.testing.assert_close(model(source, target).hidden, decoder.norm(x))


@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
@torch.no_grad()
def test_concatenated_positions_are_their_formula(position: str) -> None:
    """W [x; p] + b, of source and target; with W = [I, I] and b = 0, the sum."""
    model, plain = (transformer(position=position, position_join=join) for join in ("concatenate", "add"))
    source, target, places = ids(7), ids(5), torch.arange(7)[None].expand(2, -1)
    inner = model.encoder.position.position(places)
    x = model.encoder.front(Source(source))[0]
    wanted = torch.cat([x, inner], -1) @ model.encoder.position.merge.weight.T + model.encoder.position.merge.bias
    torch.testing.assert_close(model.encoder.position.join(x, places), wanted)
    before = model(Source(source), target).hidden
    names = {name: name.replace("position.position.", "position.") for name in model.state_dict()}
    plain.load_state_dict({new: model.state_dict()[old] for old, new in names.items() if "merge" not in old})
    for part in (model.encoder.position, model.decoder.embedding.position):
        part.merge.weight.copy_(torch.eye(16).repeat(1, 2))
        part.merge.bias.zero_()
    torch.testing.assert_close(model(Source(source), target).hidden, plain(Source(source), target).hidden)
    assert not torch.allclose(before, plain(Source(source), target).hidden)


def test_what_is_switched_off_has_no_weights() -> None:
    names = dict(transformer(norm="none", feedforward=0, cross_layers="last").named_parameters())
    assert not [name for name in names if "norm" in name or "network" in name]
    assert {name.split(".")[2] for name in names if ".cross." in name} == {"2"}


def test_combinations_that_cannot_work_are_refused() -> None:
    for options in ({"feedforward": 0}, {"residual": False}, {"cross_layers": "last"}):
        with pytest.raises(ConfigError, match=r"reversible"):
            transformer(reversible=True, **options)
    with pytest.raises(ConfigError, match="wiring"):
        transformer(cross_layers="last", wiring="mix")
