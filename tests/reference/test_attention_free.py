"""Mixing without attention: each mechanism against its formula, in its limits, and at its known pitfalls."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Mixer, Site, Use
from weft.attention.mixers import build_self
from weft.attention.mixers.attention_free import AttentionFreeMixer, WeightedSum, prefix_sums
from weft.attention.mixers.fnet import FourierMixer
from weft.attention.mixers.gmlp_and_mlp_mixer import GatedMlpMixer, TokenMlpMixer
from weft.attention.mixers.set_transformer import InducedSetMixer
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.decoder_state import leaves
from weft.layers.recurrent import repack, unpack
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.models.pooling import MultiheadPooling

DIM, HEADS, EXTENT = 12, 3, 53
LENGTHS = (53, 1, 37, 48, 2)
"""Including primes, a single token, and three times a power of two."""

LONG = 150
"""More than two blocks of queries with their windows."""


def site(use: Use = "encoder", dim: int = DIM) -> Site:
    return Site(use, dim, HEADS)


def scattered(part: nn.Module, much: float = 0.3) -> Any:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter += much * torch.randn_like(parameter)
    return part.eval()


def tokens(rows: int = 2, extent: int = EXTENT, dim: int = DIM) -> Tensor:
    return torch.randn(rows, extent, dim, generator=torch.Generator().manual_seed(2))


def mixed(part: Mixer, x: Tensor, layout: Layout | None = None) -> Tensor:
    return part(x, part.init_state(rows=x.size(0)), layout=layout).context


def same(a: Tensor, b: Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-3)


@pytest.mark.parametrize("dim", [DIM, 13, 1])
def test_fnet_is_the_transform_of_each_row_alone(dim: int) -> None:
    """Also in a batch with longer rows, where the transform of the padded row would differ."""
    x, layout = tokens(len(LENGTHS), EXTENT, dim), Layout.padded(LENGTHS)
    found = mixed(FourierMixer(site(dim=dim), norm="none"), x, layout)
    whole = mixed(FourierMixer(site(dim=dim)), x)
    for row, length in enumerate(LENGTHS):
        alone = np.fft.fft2(x[row, :length].double().numpy()).real
        same(found[row, :length].double(), torch.from_numpy(alone), atol=1e-4)
        same(whole[row].double(), torch.from_numpy(np.fft.fft2(x[row].double().numpy(), norm="ortho").real))


def test_fnet_keeps_its_precision_on_long_rows() -> None:
    """The angles of row 8,191 involve squares of 26 bits, more than a float32 can represent."""
    lengths = (8192, 8191, 5000)
    x, layout = tokens(3, 8192, 2), Layout.padded(lengths)
    found = mixed(FourierMixer(site(dim=2)), x, layout)
    for row, length in enumerate(lengths):
        alone = np.fft.fft2(x[row, :length].double().numpy(), norm="ortho").real
        same(found[row, :length].double(), torch.from_numpy(alone), atol=1e-5)


def weighed(part: AttentionFreeMixer, x: Tensor, bias: Tensor) -> Tensor:
    """The formula in float64: bias [H or 1, T, S], −inf for keys that a query may not see."""
    part = part.double()
    q, k, v = part.query_key_value(x.double()).chunk(3, -1)
    bias = bias.double().repeat_interleave(DIM // bias.size(0), 0).permute(1, 2, 0)  # [T, S, D]
    weights = (k[:, None] + bias).softmax(2)
    return part.out(torch.sigmoid(q) * (weights * v[:, None]).sum(2)).float()


def future(extent: int) -> Tensor:
    return torch.where(torch.ones(extent, extent).tril() > 0, 0.0, -torch.inf)


def aft(form: str, use: Use, **options: Any) -> AttentionFreeMixer:
    torch.manual_seed(0)
    return scattered(AttentionFreeMixer(site(use), form=form, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("use", ["encoder", "causal"])
@pytest.mark.parametrize("form", ["simple", "local", "full", "conv"])
def test_aft_is_its_formula(form: str, use: Use) -> None:
    part, x = aft(form, use, window=5, rank=4), tokens(extent=LONG)
    apart = torch.arange(LONG)[:, None] - torch.arange(LONG)
    bias = torch.zeros(1, LONG, LONG)
    if form == "conv":
        bias = torch.zeros(HEADS, LONG, LONG)
        for tap in range(5):
            bias[:, apart == tap - (2 if use == "encoder" else 0)] = part.taps.detach()[:, tap, None]
    elif form != "simple":
        assert part.columns is not None
        bias = (part.rows @ part.columns.T).detach()[None, :LONG, :LONG]
        bias = bias if form == "full" else torch.where(apart.abs() < 5, bias, 0.0)
    found = mixed(part, x)
    same(found, weighed(part, x, bias + (future(LONG) if use == "causal" else 0)))


@pytest.mark.parametrize("use", ["encoder", "causal"])
def test_aft_forms_meet(use: Use) -> None:
    """Without biases full, local and conv equal simple; with a window as long as the text local equals full."""
    x, simple = tokens(), aft("simple", use)
    for form in ("full", "local", "conv"):
        part = aft(form, use)
        part.load_state_dict(simple.state_dict(), strict=False)
        with torch.no_grad():
            for name in ("rows", "taps"):
                if name in part._parameters:
                    part._parameters[name].zero_()  # type: ignore[union-attr]
        same(mixed(part, x), mixed(simple, x))
    same(mixed(aft("local", use, window=EXTENT), x), mixed(aft("full", use), x))


@pytest.mark.parametrize("form", ["simple", "local", "full", "conv"])
def test_a_large_key_to_come_changes_nothing_before_it(form: str) -> None:
    """Weights relative to the largest key of the whole row would be 0 for earlier tokens."""
    part, x = aft(form, "causal"), tokens()
    with torch.no_grad():
        part.query_key_value.weight[DIM : 2 * DIM] = torch.eye(DIM)
    loud = x.clone()
    loud[:, 40:] += 500.0
    before, after = mixed(part, x), mixed(part, loud)
    assert after.isfinite().all()
    same(after[:, :40], before[:, :40])
    late = x.clone()
    late[:, 47] += 500.0  # it dominates all later tokens
    value = part.query_key_value(late)[:, 47, 2 * DIM :]
    query = torch.sigmoid(part.query_key_value(late)[:, 50, :DIM])
    same(mixed(part, late)[:, 50], part.out(query * value), atol=1e-3)


def test_the_state_of_simple_aft_has_one_size() -> None:
    part = aft("simple", "causal")
    state = part.init_state(rows=2, room=4)
    sizes = {sum(leaf.numel() for leaf in leaves(state))}
    for length in (1, 7, 40):
        state = part(tokens(extent=length), state).state
        sizes.add(sum(leaf.numel() for leaf in leaves(state)))
    assert sizes == {2 * 3 * DIM}


def test_prefixes_are_exact_for_any_exponents() -> None:
    k = 300 * torch.randn(2, EXTENT, 3, generator=torch.Generator().manual_seed(3))
    v = torch.randn(2, EXTENT, 3, generator=torch.Generator().manual_seed(4))
    for extent in (1, 2, 3, 8, EXTENT):
        found = prefix_sums(WeightedSum.of(k[:, :extent], v[:, :extent])).mean()
        for t in range(extent):
            same(found[:, t], (k[:, : t + 1].softmax(1) * v[:, : t + 1]).sum(1))


@pytest.mark.parametrize("use", ["encoder", "causal"])
def test_gmlp_is_its_formula(use: Use) -> None:
    torch.manual_seed(0)
    part, x = GatedMlpMixer(site(use), hidden=10, max_length=64), tokens()
    u, v = F.gelu(part.up(x)).chunk(2, -1)
    same(mixed(part, x), part.down(u), atol=1e-2)  # initially it is a position-wise network
    with torch.no_grad():
        part.weight.zero_()
    same(mixed(part, x), part.down(u * part.bias[:EXTENT, None]))
    part = scattered(part)
    u, v = F.gelu(part.up(x)).chunk(2, -1)
    weight = part.weight[:EXTENT, :EXTENT]
    gate = (weight if use == "encoder" else weight.tril()) @ part.norm(v) + part.bias[:EXTENT, None]
    same(mixed(part, x), part.down(u * gate))


def test_mlp_mixer_is_a_network_over_positions() -> None:
    part, x = scattered(TokenMlpMixer(site(), hidden=7, max_length=EXTENT)), tokens()
    first, second = nn.Linear(EXTENT, 7), nn.Linear(7, EXTENT)
    with torch.no_grad():
        for layer, weight, bias in ((first, part.up, part.up_bias), (second, part.down, part.down_bias)):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    same(mixed(part, x), second(F.gelu(first(x.transpose(1, 2)))).transpose(1, 2))


def test_isab_is_its_formula() -> None:
    """MAB(I, X) by torch's attention, and attention from X to it by another."""
    part, x, layout = scattered(InducedSetMixer(site(), points=4)), tokens(), Layout.padded((EXTENT, 9))
    gather, spread = (_torch_attention(block) for block in (part.gather.attention, part.spread))
    points = part.points.expand(2, -1, -1)
    hidden = part.gather.norm_attention(points + gather(points, x, x, key_padding_mask=~layout.mask)[0])
    hidden = part.gather.norm_network(hidden + F.relu(part.gather.network(hidden)))
    same(mixed(part, x, layout), spread(x, hidden, hidden)[0])


def _torch_attention(block: Any) -> nn.MultiheadAttention:
    found = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    with torch.no_grad():
        found.in_proj_weight.copy_(torch.cat([block.query.weight, block.key_value.weight]))
        found.in_proj_bias.copy_(torch.cat([block.query.bias, block.key_value.bias]))
        found.out_proj.load_state_dict(block.out.state_dict())
    return found.eval()


def test_pma_is_its_formula() -> None:
    part, x, layout = scattered(MultiheadPooling(DIM, rows=2, heads=HEADS)), tokens(), Layout.padded((EXTENT, 9))
    seeds, read = part.seeds.expand(2, -1, -1), F.relu(part.network(x))
    found, weights = _torch_attention(part.block.attention)(seeds, read, read, key_padding_mask=~layout.mask)
    hidden = part.block.norm_attention(seeds + found)
    pooled = part(x, layout)
    same(pooled.vectors, part.block.norm_network(hidden + F.relu(part.block.network(hidden))))
    same(pooled.weights, weights)
    with torch.no_grad():
        part.block.attention.query.weight.zero_()
        part.block.attention.query.bias.zero_()
    same(part(x, layout).weights[1, :, :9], torch.full((2, 9), 1 / 9))  # with zero queries it is the mean


def test_a_set_transformer_knows_no_order() -> None:
    """Without positions and with induced set attention, permuting tokens permutes the outputs and keeps the pooled vector."""
    options = {"dim": DIM, "heads": HEADS, "encoder_layers": 2, "decoder_layers": 1, "encoder_self": {"kind": "isab"}}
    ids, order = torch.arange(4, 19)[None], torch.randperm(15, generator=torch.Generator().manual_seed(0))
    for position, alike in (("none", True), ("sinusoidal", False)):
        torch.manual_seed(0)
        model = build_model({"kind": "transformer", "position": position, **options}, Sizes(19, 19, shared=True)).eval()
        pooling = scattered(MultiheadPooling(DIM, heads=HEADS))
        there, back = model.encode(Source(ids)).memory, model.encode(Source(ids[:, order])).memory
        assert torch.allclose(there[:, order], back, atol=1e-5) == alike
        assert torch.allclose(pooling(there).vectors, pooling(back).vectors, atol=1e-5) == alike


def test_packed_sentences_come_apart_and_together() -> None:
    x, layout = tokens(1), Layout.pack((11, 1, 20), EXTENT)
    rows, own = unpack(x, layout)
    assert rows.shape[1:] == (20, DIM)
    assert own.lengths.tolist() == [11, 1, 20, *[0] * (len(rows) - 3)]
    assert torch.equal(rows[2], x[0, 12:32])
    assert torch.equal(repack(rows, layout)[layout.mask], x[layout.mask])


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("fnet", r"fnet: .*including future ones; in a decoder use aft"),
        ("mlp_mixer", "use gmlp or aft"),
        ("isab", "the whole set, including future tokens; in a decoder use linear"),
    ],
)
def test_what_cannot_decode_says_why_and_what_to_use(kind: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_model({"kind": "transformer", "dim": DIM, "heads": HEADS, "decoder_self": kind}, Sizes(19, 19, shared=True))


def test_a_convolution_both_ways_is_odd() -> None:
    with pytest.raises(ConfigError, match="must be odd, not 4; use a window of 5"):
        build_self({"kind": "aft", "form": "conv", "window": 4}, site())
    assert math.isfinite(mixed(aft("conv", "causal", window=4), tokens()).sum().item())
