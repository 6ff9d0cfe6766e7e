"""Attention over fewer keys than tokens, Linformer and compressed, against formulas and in their limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.attention.base import Attention, Site, Use, join_heads, split_heads
from weft.attention.full import FullAttention
from weft.attention.linformer import LinformerAttention
from weft.attention.memory_compressed import CompressedAttention
from weft.data.batch import Layout
from weft.errors import ConfigError, DataError
from weft_contract.mechanism_entries import perturbed

DIM, HEADS, EXTENT, MEMORY = 16, 4, 71, 45


def make(kind: type[Attention], use: Use, **options: Any) -> Any:
    """The mechanism with nonzero biases, in evaluation mode."""
    return perturbed(kind(Site(use, DIM, HEADS), **options), by=0.1)


def tokens(rows: int = 2, extent: int = EXTENT) -> Tensor:
    return torch.randn(rows, extent, DIM)


@torch.no_grad()
def attend(part: Any, x: Tensor, memory: Tensor, layout: Layout | None = None) -> Tensor:
    """Self-attention or attention to the memory, depending on the use."""
    if part.site.use == "cross":
        return part(x, part.init_state(memory, layout)).context
    return part(x, part.init_state(rows=x.size(0)), append=x, layout=layout).context


def same(a: Tensor, b: Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-3)


def softmax_attention(part: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return part.heads.out(join_heads((q @ k.transpose(-1, -2) / math.sqrt(DIM // HEADS)).softmax(-1) @ v))


# Linformer


@pytest.mark.parametrize("use", ["encoder", "cross"])
def test_linformer_that_mixes_nothing_is_full(use: Use) -> None:
    """E = F = I, with one row per position."""
    length = MEMORY if use == "cross" else EXTENT
    full, part = make(FullAttention, use), make(LinformerAttention, use, rank=length, max_length=length)
    part.load_state_dict(full.state_dict(), strict=False)
    with torch.no_grad():
        part.mix.copy_(torch.eye(length).expand(2, 1, length, length))
    x, memory = tokens(), tokens(extent=MEMORY)
    same(attend(part, x, memory), attend(full, x, memory))


@pytest.mark.parametrize("share", ["none", "heads", "key_value"])
def test_linformer_is_its_formula(share: str) -> None:
    """softmax(Q(EK)ᵀ/√d) FV, with the columns of E and F for the tokens of the row."""
    part, x, lengths = make(LinformerAttention, "encoder", rank=9, max_length=100, share=share), tokens(), (EXTENT, 26)
    found = attend(part, x, x, Layout.padded(lengths))
    for row, length in enumerate(lengths):
        q, k, v = part.heads.own(x[row : row + 1, :length])
        e, f = part.mix[0, :, :, :length], part.mix[-1, :, :, :length]
        assert len(part.mix) == (1 if share == "key_value" else 2) and len(e) == (HEADS if share == "none" else 1)
        same(found[row : row + 1, :length], softmax_attention(part, q, e @ k, f @ v))


def test_linformer_takes_batches_padded_beyond_its_length_but_no_longer_row() -> None:
    part, x = make(LinformerAttention, "encoder", max_length=30), tokens(extent=32)
    same(attend(part, x, x, Layout.padded([30, 4], 32))[:, :30], attend(part, x[:, :30], x, Layout.padded([30, 4])))
    with pytest.raises(DataError, match=r"30 positions, but a sequence has 31 tokens; raise its max_length"):
        attend(part, x, x, Layout.padded([31, 4], 32))


def test_linformer_is_refused_where_it_would_see_the_future() -> None:
    with pytest.raises(ConfigError, match=r"does not support causal use, .*mixes all positions.* use performer"):
        LinformerAttention(Site("causal", DIM, HEADS))


# Compressed


def plain_windows(part: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Compressed keys and values [B, H, W, D / H], window by window, the last one padded with zeros."""
    key_value = part.heads.query_key_value(x)[..., DIM:]
    found = []
    for begin in range(0, x.size(1), part.stride):
        window = key_value[:, begin : begin + part.stride]
        window = torch.cat([window, window.new_zeros(x.size(0), part.stride - window.size(1), 2 * DIM)], 1)
        found.append((part.keys(window[..., :DIM].flatten(1)), part.values(window[..., DIM:].flatten(1))))
    k, v = (split_heads(torch.stack(parts, 1), HEADS) for parts in zip(*found, strict=True))
    return k, v


@pytest.mark.parametrize("use", ["encoder", "causal", "cross"])
def test_compressed_with_a_stride_of_one_is_full(use: Use) -> None:
    full, part = make(FullAttention, use), make(CompressedAttention, use, stride=1)
    part.load_state_dict(full.state_dict(), strict=False)
    for shorten in (part.keys, part.values):
        nn.init.eye_(shorten.weight)
        nn.init.zeros_(shorten.bias)
    x, memory = tokens(), tokens(extent=MEMORY)
    same(attend(part, x, memory), attend(full, x, memory))


@pytest.mark.parametrize("stride", [2, 3, 5])
def test_compressed_encoder_is_its_formula(stride: int) -> None:
    part, x, lengths = make(CompressedAttention, "encoder", stride=stride), tokens(), (EXTENT, 26)
    found = attend(part, x, x, Layout.padded(lengths))
    for row, length in enumerate(lengths):
        own = x[row : row + 1, :length]
        q = part.heads.own(own)[0]
        same(found[row : row + 1, :length], softmax_attention(part, q, *plain_windows(part, own)))


@pytest.mark.parametrize("stride", [2, 3, 5])
@pytest.mark.parametrize("extent", [1, 4, 15, EXTENT])
def test_compressed_causal_sees_windows_that_have_ended(stride: int, extent: int) -> None:
    """Query by query; the first stride − 1 see nothing and get 0, which the output projection maps to its bias."""
    part, x = make(CompressedAttention, "causal", stride=stride), tokens(extent=extent)
    found, q = attend(part, x, x), part.heads.own(x)[0]
    k, v = plain_windows(part, x)
    for t in range(extent):
        ended = (t + 1) // stride
        if ended:
            wanted = softmax_attention(part, q[:, :, t : t + 1], k[:, :, :ended], v[:, :, :ended])[:, 0]
        else:
            wanted = part.heads.out.bias.detach().expand(2, DIM)
        same(found[:, t], wanted)
