"""Convolutions and ConvS2S against torch's convolution and against their formulas, one token at a time."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.base import Site
from weft.attention.core.weight_recorder import record
from weft.attention.multistep import MultistepAttention
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.linear_norm_dropout import NormedLinear
from weft.models.base import Sizes
from weft.models.convs2s import ConvS2SLayer, GatedConvolution
from weft.models.encoder_decoder import build_model
from weft_contract.mechanism_entries import perturbed, same

DIM, OUT, LENGTHS = 6, 5, (23, 1, 9, 4)
VOCABULARY = Sizes(19, 19, shared=True)


def ids(rows: int, extent: int) -> Tensor:
    return torch.randint(4, VOCABULARY.source, (rows, extent))


def convolve(window: TokenWindow, x: Tensor, taps: nn.Linear) -> Tensor:
    """One row [T, D] by torch's convolution."""
    kernel = taps.weight.view(OUT, window.width, DIM).transpose(1, 2)
    before = window.span if window.causal else window.span // 2
    row = F.pad(x.t(), (before, window.span - before))
    return F.conv1d(row[None], kernel, taps.bias, dilation=window.dilation)[0].t()


WINDOWS = [
    TokenWindow(DIM, width, dilation, causal)
    for width, dilation in ((1, 1), (3, 1), (3, 4), (5, 2), (5, 7))
    for causal in (False, True)
] + [TokenWindow(DIM, 2, 1, causal=True), TokenWindow(DIM, 4, 3, causal=True)]


def problem(window: TokenWindow) -> tuple[list[Tensor], nn.Linear, list[Tensor]]:
    """Rows of several lengths, a linear layer, and the output of torch's convolution for each row alone."""
    rows = [torch.randn(length, DIM) for length in LENGTHS]
    taps = nn.Linear(window.width * DIM, OUT)
    return rows, taps, [convolve(window, row, taps) for row in rows]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_padded_rows_equal_torch_on_each_alone(window: TokenWindow) -> None:
    rows, taps, wanted = problem(window)
    x, layout = torch.randn(len(rows), 26, DIM), Layout.padded(LENGTHS, 26)
    for number, row in enumerate(rows):
        x[number, : len(row)] = row
    found = taps(window(x, window.init_state(len(rows), x), layout)[0])
    for mine, theirs in zip(found, wanted, strict=True):
        same(mine[: len(theirs)], theirs)


def test_packed_rows_equal_torch_on_each_alone() -> None:
    """All windows share one layout, as in a model: they must not confuse the values that they cache in it."""
    layout = Layout.pack(LENGTHS, sum(LENGTHS) + 5)
    for window in WINDOWS:
        rows, taps, wanted = problem(window)
        x = torch.cat([*rows, torch.randn(5, DIM)])[None]
        found = taps(window(x, window.init_state(1, x), layout)[0])
        same(found[0, : sum(LENGTHS)], torch.cat(wanted))


@pytest.mark.parametrize("window", [window for window in WINDOWS if window.causal], ids=str)
@pytest.mark.parametrize("piece", [1, 4, 11])
def test_pieces_equal_torch_on_the_whole(window: TokenWindow, piece: int) -> None:
    rows, taps, wanted = problem(window)
    tail, found = window.init_state(1, rows[0]), []
    for part in rows[0].split(piece):
        windows, tail = window(part[None], tail, None)
        assert tail is not None and tail.shape == (1, window.span, DIM)
        found.append(taps(windows)[0])
    same(torch.cat(found), wanted[0])


def test_ragged_pieces_equal_torch_on_each_alone() -> None:
    """Every row is fed some of its tokens at a time, and sometimes none."""
    window = TokenWindow(DIM, 3, 4, causal=True)
    rows, taps, wanted = problem(window)
    left, found = list(rows), [[] for _ in rows]
    tail = window.init_state(len(rows), rows[0])
    for step in range(20):
        counts = [min(len(row), (number + step) % 4) for number, row in enumerate(left)]
        x = torch.randn(len(rows), 5, DIM)
        for number, count in enumerate(counts):
            x[number, :count], left[number] = left[number][:count], left[number][count:]
        windows, tail = window(x, tail, Layout.padded(counts, 5))
        for number, count in enumerate(counts):
            found[number].append(taps(windows[number, :count]))
    for parts, theirs in zip(found, wanted, strict=True):
        same(torch.cat(parts), theirs)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_window_sees_what_it_says(window: TokenWindow) -> None:
    x = torch.randn(1, 20, DIM, requires_grad=True)
    windows = window(x, window.init_state(1, x), None)[0]
    seen = torch.stack([torch.autograd.grad(windows[0, t].sum(), x, retain_graph=True)[0][0].any(-1) for t in range(20)])
    assert torch.equal(seen, window.sees(20))


def test_a_window_around_its_token_is_odd() -> None:
    with pytest.raises(ConfigError, match="odd, not 4; use a width of 5"):
        TokenWindow(DIM, 4)
    with pytest.raises(ConfigError, match="odd"):
        build_model({"kind": "convs2s", "width": 2}, VOCABULARY)


def test_normed_linear_equals_torch_weight_norm() -> None:
    mine, theirs = perturbed(NormedLinear(DIM, OUT)), nn.utils.parametrizations.weight_norm(nn.Linear(DIM, OUT))
    with torch.no_grad():
        theirs.parametrizations.weight.original0.copy_(mine.length[:, None])
        theirs.parametrizations.weight.original1.copy_(mine.direction)
        theirs.bias.copy_(mine.bias)
    x = torch.randn(3, DIM)
    same(mine(x), theirs(x))
    same(mine.weight.norm(dim=1), mine.length)


def test_first_weights_keep_the_variance() -> None:
    """Through dropout, a convolution and its gate; initially the lengths are those of the directions."""
    x = torch.randn(4, 500, 64)
    for share in (0.0, 0.3):
        block = GatedConvolution(64, 3, share, causal=False)
        same(block.taps.weight, block.taps.direction)
        found = block(x * 0.1, None, None)[0] / 0.1  # small like embeddings, so that the gate is near one half
        assert found.var().item() == pytest.approx(1.0, rel=0.15)
        linear = NormedLinear(64, 64, gain=1 - share)
        assert linear(F.dropout(x, share)).var().item() == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("causal", [False, True])
def test_a_gated_convolution_is_its_loop(causal: bool) -> None:
    """A ⊙ σ(B), token by token, the convolution as a sum over taps."""
    block, x = perturbed(GatedConvolution(DIM, 3, 0.4, causal=causal)), torch.randn(1, 11, DIM)
    found = block(x, block.init_state(1), None)[0]
    kernel = block.taps.weight.view(2 * DIM, 3, DIM)
    for t in range(11):
        total = block.taps.bias.clone()
        for tap in range(3):
            at = t + tap - (2 if causal else 1)
            if 0 <= at < 11:
                total = total + kernel[:, tap] @ x[0, at]
        same(found[0, t], total[:DIM] * torch.sigmoid(total[DIM:]))


@pytest.mark.parametrize("packed", [False, True])
def test_a_layer_of_convs2s_is_its_formula(packed: bool) -> None:
    """d = W h + b + g; α = softmax(d · z); c = √m Σ α (z + e): pair by pair, per source; sums of two are scaled by √½."""
    cross = MultistepAttention(Site("cross", DIM, memory=2 * DIM))
    layer, half = perturbed(ConvS2SLayer(GatedConvolution(8, 3, 0.0, causal=True), cross)), math.sqrt(0.5)
    sources, targets = (7, 1, 4), (3, 5, 2)
    z, e = ([torch.randn(count, DIM) for count in sources] for _ in range(2))
    x, g = ([torch.randn(count, width) for count in targets] for width in (8, DIM))
    memory = [torch.cat([a, (a + b) * half], -1) for a, b in zip(z, e, strict=True)]
    above, below = (Layout.pack(counts, sum(counts) + 2) if packed else Layout.padded(counts) for counts in (sources, targets))

    def lay(rows: list[Tensor], layout: Layout) -> Tensor:
        block = torch.randn(*layout.mask.shape, rows[0].size(-1))
        block[layout.mask] = torch.cat(rows)
        return block

    tail, look = layer.block.init_state(len(below.mask)), cross.init_state(lay(memory, above), above)
    found = layer(lay(x, below), lay(g, below), tail, look, below, {})[0][below.mask].split(targets)
    for row, count in enumerate(targets):
        h = layer.block(x[row][None], layer.block.init_state(1), None)[0][0]
        for t in range(count):
            d = layer.query.weight @ h[t] + layer.query.bias + g[row][t]
            scores = [math.exp(half * (d @ key).item()) for key in z[row]]
            c = torch.zeros(DIM)
            for score, key, embedded in zip(scores, z[row], e[row], strict=True):
                c += score / sum(scores) * (key + embedded) * half
            looked = (layer.out(c * math.sqrt(len(scores))) + h[t]) * half
            same(found[row][t], (looked + x[row][t]) * half)


def test_the_memory_of_convs2s_is_its_formula() -> None:
    """[z, (z + e) √½], where e is token and position, and every sum of two is times √½."""
    encoder, tokens = (
        perturbed(build_model({"kind": "convs2s", "dim": 8, "channels": 10, "encoder_layers": 2}, VOCABULARY)).encoder,
        ids(1, 9),
    )
    e = encoder.front.table.weight[tokens[0]] + encoder.position.table.weight[:9]
    x = encoder.enter(e)[None]
    for block in encoder.blocks:
        x = math.sqrt(0.5) * (x + block(x, None, None)[0])
    z = encoder.leave(x)[0]
    same(encoder(Source(tokens)).memory[0], torch.cat([z, math.sqrt(0.5) * (z + e)], -1))


def test_convs2s_shows_its_weights() -> None:
    model, layout = (
        build_model({"kind": "convs2s", "dim": 8, "channels": 8, "decoder_layers": 2}, VOCABULARY).eval(),
        Layout.padded([9, 4]),
    )
    with record(model) as tape:
        model(Source(ids(2, 9), layout), ids(2, 5))
    assert sorted(tape) == ["decoder.layers.0.cross", "decoder.layers.1.cross"]
    for (weights,) in tape.values():
        assert weights.shape == (2, 1, 5, 9)
        same(weights.sum(-1), torch.ones(2, 1, 5))
        assert not weights[1, :, :, 4:].any()


def test_the_encoder_of_convs2s_gets_its_share_of_the_gradient() -> None:
    """1 / (2 · looks) of it for the convolutions; embeddings, which are also values, get theirs in full besides."""
    model = build_model({"kind": "convs2s", "dim": 8, "channels": 8, "decoder_layers": 3, "dropout": 0.0}, VOCABULARY)
    tokens = ids(1, 9)
    (full,) = torch.autograd.grad(model.encoder.leave(torch.randn(1, 9, 8)).sum(), [model.encoder.leave.bias])
    memory = model.encode(Source(tokens)).memory
    (share,) = torch.autograd.grad(memory[..., :8].sum(), [model.encoder.leave.bias])
    same(share, full / 6)
