"""Funnel-Transformer against its equations, row by row, and the limit in which it is a plain encoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.models.base import Encoder, Sizes
from weft.models.encoder_decoder import build_encoder
from weft.tasks.tagging.model import Tagger
from weft_contract.mechanism_entries import perturbed

LENGTHS = [9, 4, 1, 6]
SMALL: dict[str, Any] = {"dim": 8, "heads": 2, "feedforward": 12, "dropout": 0.0}


def make(kind: str, **options: Any) -> Encoder:
    torch.manual_seed(2)
    spec = {"kind": "composed", "encoder": {"kind": kind, **SMALL, **options}}
    return perturbed(build_encoder(spec, Sizes(9, 9)))


def attend(attention: Any, queries: Tensor, keys: Tensor) -> Tensor:
    """Scaled dot-product attention with two heads of width 4 (Vaswani et al. 2017, equation 1), head by head."""
    heads = attention.heads
    q = queries @ heads.query.weight.T + heads.query.bias
    k, v = (keys @ heads.key_value.weight.T + heads.key_value.bias).chunk(2, -1)
    parts = [((q[:, at : at + 4] @ k[:, at : at + 4].T) / 2).softmax(-1) @ v[:, at : at + 4] for at in (0, 4)]
    return torch.cat(parts, 1) @ heads.out.weight.T + heads.out.bias


def norm(layer: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, (8,), layer.weight, layer.bias)


def feed(layer: Any, x: Tensor) -> Tensor:
    y = norm(layer.around_network.norm, x)
    up, down = layer.network.up, layer.network.down
    return x + torch.relu(y @ up.weight.T + up.bias) @ down.weight.T + down.bias


@torch.no_grad()
def test_shortening_is_its_equation() -> None:
    """Section 2.2: h' = pool(h), h = LN(h' + attention(Q = h', KV = h)), here with norms before the sub-layers."""
    encoder, layout = make("funnel", blocks=[1, 1]), Layout.padded(LENGTHS, 10)
    tokens = torch.randint(3, 9, (4, 10))
    found = encoder(Source(tokens, layout))
    assert encoder.shortens == 2 and found.layout.lengths.tolist() == [5, 2, 1, 3]
    plain, shortening = encoder.layers
    for row, length in enumerate(LENGTHS):
        x = encoder.front(Source(tokens[row : row + 1, :length]))[0]
        x = x + encoder.position(torch.arange(length)[None])
        h = plain(x, None, {})[0]
        pooled = torch.stack([h[place : place + 2].mean(0) for place in range(0, length, 2)])
        keys, queries = norm(shortening.around.norm, h), norm(shortening.around.norm, pooled)
        y = feed(shortening, pooled + attend(shortening.attention, queries, keys))
        torch.testing.assert_close(found.memory[row, : len(y)], norm(encoder.norm, y))


@torch.no_grad()
def test_one_block_is_a_transformer_encoder() -> None:
    funnel, plain = make("funnel", blocks=[2]), make("transformer", layers=2)
    plain.load_state_dict(funnel.state_dict())
    source = Source(torch.randint(3, 9, (4, 10)), Layout.padded(LENGTHS, 10))
    mask = source.layout.mask
    torch.testing.assert_close(funnel(source).memory[mask], plain(source).memory[mask])
    assert funnel.shortens == 1


def test_a_tagger_refuses_it() -> None:
    with pytest.raises(ConfigError, match="FunnelEncoder of these settings does not have one vector per word"):
        Tagger(make("funnel", blocks=[1, 1]), 3, "first")


def test_limits_count_positions_of_the_text() -> None:
    limited = {"kind": "linformer", "max_length": 6, "rank": 4}
    assert make("funnel", blocks=[1, 2], mixer=["full", limited, limited], max_length=90, position="learned").max_source == 12
