"""A prefix language model against one stack over source and target with the mask of UniLM, written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.embeddings_and_rotary_positions import rotate, rotation
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.prefix_language_model import share_weights
from weft_contract.mechanism_entries import perturbed

DIM, HEADS = 8, 2
SMALL: dict[str, Any] = {"dim": DIM, "heads": HEADS, "feedforward": 12, "layers": 2, "dropout": 0.0, "activation": "relu"}
ROTARY: dict[str, Any] = {"position": "none", "attention": {"kind": "full", "position": "rotary"}}


def make(**options: Any) -> Model:
    torch.manual_seed(1)
    return perturbed(build_model({"kind": "prefix_language_model", **SMALL, **options}, Sizes(19, 19, shared=True)))


def attend(heads: Any, x: Tensor, mask: Tensor, rotary: bool) -> Tensor:
    q, k, v = (
        part.view(-1, HEADS, DIM // HEADS).transpose(0, 1)[None]
        for part in F.linear(x, heads.query_key_value.weight, heads.query_key_value.bias).chunk(3, -1)
    )
    if rotary:
        turn = rotation(torch.arange(len(x))[None], DIM // HEADS, 10000.0, x.dtype)
        q, k = rotate(q, turn), rotate(k, turn)
    weights = ((q @ k.transpose(-1, -2)) / (DIM // HEADS) ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    return heads.out((weights @ v)[0].transpose(0, 1).flatten(1))


def by_hand(model: Model, source: Tensor, target: Tensor, rotary: bool) -> Tensor:
    """Dong et al. 2019, section 2.3: source tokens see the source, target tokens the source and what is to their left."""
    decoder, (s, t) = model.decoder, (len(source), len(target))
    mask = torch.ones(s + t, s + t, dtype=torch.bool).tril()
    mask[:s, :s] = True
    x = decoder.embedding.table.weight[torch.cat([source, target])] * DIM**0.5
    if not rotary:
        x = x + decoder.embedding.position(torch.arange(s + t)[None])[0]
    x = x + torch.cat([decoder.segments.weight[0].expand(s, -1), decoder.segments.weight[1].expand(t, -1)])
    for layer in decoder.layers:
        norm = layer.around_mixer.norm
        x = x + attend(layer.mixer.attention.heads, norm(x), mask, rotary)
        x = x + layer.network.down(F.relu(layer.network.up(layer.around_network.norm(x))))
    return decoder.norm(x)[s:]


@torch.no_grad()
@pytest.mark.parametrize(
    "options", [ROTARY, {"position": "sinusoidal"}, {"position": "learned"}], ids=["rotary", "waves", "learned"]
)
def test_it_is_one_stack_with_unilms_mask(options: dict[str, Any]) -> None:
    model, above, below = make(**options), [7, 3, 5], [4, 6, 1]
    source, target = torch.randint(4, 19, (3, 7)), torch.randint(4, 19, (3, 6))
    found = model(Source(source, Layout.padded(above)), target, Layout.padded(below)).hidden
    for row, (s, t) in enumerate(zip(above, below, strict=True)):
        wanted = by_hand(model, source[row, :s], target[row, :t], options is ROTARY)
        torch.testing.assert_close(found[row, :t], wanted)


def test_source_and_target_share_all_weights() -> None:
    model = make()
    assert {id(each) for each in model.encoder.parameters()} == {id(each) for each in model.decoder.parameters()}
    half = build_model({"kind": "transformer", **{k: v for k, v in SMALL.items() if k != "layers"}}, Sizes(19, 19, shared=True))
    assert model.count_parameters() < half.count_parameters()


def test_separate_vocabularies_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"set data\.shared_vocabulary: true"):
        build_model({"kind": "prefix_language_model", **SMALL}, Sizes(19, 21))


def test_an_attention_with_other_weights_in_an_encoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="linformer: LinformerAttention does not support causal use"):
        make(attention="linformer")
    with pytest.raises(ConfigError, match="one stack cannot be encoder and decoder"):
        share_weights(nn.Linear(3, 4), nn.Linear(3, 5))
