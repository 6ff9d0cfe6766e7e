"""Convolutions, ConvS2S and ByteNet against torch's own convolution and against their formulas, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention import ATTENTIONS
from weft.attention.base import Site
from weft.attention.record import record
from weft.batch import Layout
from weft.errors import ConfigError
from weft.layers.convolution import Window
from weft.layers.weightnorm import NormedLinear
from weft.models.base import Encoded, Sizes
from weft.models.bytenet import ByteNet, ResidualBlock, Unfolding
from weft.models.convs2s import ConvS2S, ConvS2SLayer, GatedConvolution, MultistepAttention
from weft.registry import build, load

DIM, OUT, LENGTHS = 6, 5, (23, 1, 9, 4)
VOCABULARY = Sizes(19, 19, shared=True)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def same(a: Tensor, b: Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-3)


def ids(rows: int, extent: int) -> Tensor:
    return torch.randint(4, VOCABULARY.source, (rows, extent))


def scattered(part: nn.Module) -> nn.Module:
    """The part with random biases, which start at 0, and out of training."""
    with torch.no_grad():
        for parameter in part.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return part.eval()


def convolve(window: Window, x: Tensor, taps: nn.Linear) -> Tensor:
    """One row [T, D] by torch's convolution."""
    kernel = taps.weight.view(OUT, window.width, DIM).transpose(1, 2)
    before = window.span if window.causal else window.span // 2
    row = F.pad(x.t(), (before, window.span - before))
    return F.conv1d(row[None], kernel, taps.bias, dilation=window.dilation)[0].t()


WINDOWS = [
    Window(DIM, width, dilation, causal)
    for width, dilation in ((1, 1), (3, 1), (3, 4), (5, 2), (5, 7))
    for causal in (False, True)
] + [Window(DIM, 2, 1, causal=True), Window(DIM, 4, 3, causal=True)]


def problem(window: Window) -> tuple[list[Tensor], nn.Linear, list[Tensor]]:
    """Rows of several lengths, a linear layer, and what torch's convolution finds in each row alone."""
    rows = [torch.randn(length, DIM) for length in LENGTHS]
    taps = nn.Linear(window.width * DIM, OUT)
    return rows, taps, [convolve(window, row, taps) for row in rows]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_padded_rows_equal_torch_on_each_alone(window: Window) -> None:
    rows, taps, wanted = problem(window)
    x, layout = torch.randn(len(rows), 26, DIM), Layout.padded(LENGTHS, 26)
    for number, row in enumerate(rows):
        x[number, : len(row)] = row
    found = taps(window(x, window.start(len(rows), x), layout)[0])
    for mine, theirs in zip(found, wanted, strict=True):
        same(mine[: len(theirs)], theirs)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_packed_rows_equal_torch_on_each_alone(window: Window) -> None:
    rows, taps, wanted = problem(window)
    x, layout = torch.cat([*rows, torch.randn(5, DIM)])[None], Layout.pack(LENGTHS, sum(LENGTHS) + 5)
    found = taps(window(x, window.start(1, x), layout)[0])
    same(found[0, : sum(LENGTHS)], torch.cat(wanted))


@pytest.mark.parametrize("window", [window for window in WINDOWS if window.causal], ids=str)
@pytest.mark.parametrize("piece", [1, 4, 11])
def test_pieces_equal_torch_on_the_whole(window: Window, piece: int) -> None:
    rows, taps, wanted = problem(window)
    tail, found = window.start(1, rows[0]), []
    for part in rows[0].split(piece):
        windows, tail = window(part[None], tail, None)
        assert tail is not None and tail.shape == (1, window.span, DIM)
        found.append(taps(windows)[0])
    same(torch.cat(found), wanted[0])


def test_ragged_pieces_equal_torch_on_each_alone() -> None:
    """Every row is fed some of its tokens at a time, and now and then none."""
    window = Window(DIM, 3, 4, causal=True)
    rows, taps, wanted = problem(window)
    left, found = list(rows), [[] for _ in rows]
    tail = window.start(len(rows), rows[0])
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
def test_a_window_sees_what_it_says(window: Window) -> None:
    x = torch.randn(1, 20, DIM, requires_grad=True)
    windows = window(x, window.start(1, x), None)[0]
    seen = torch.stack([torch.autograd.grad(windows[0, t].sum(), x, retain_graph=True)[0][0].any(-1) for t in range(20)])
    assert torch.equal(seen, window.sees(20))


def test_a_window_around_its_token_is_odd() -> None:
    with pytest.raises(ConfigError, match="odd, not 4; use a width of 5"):
        Window(DIM, 4)
    with pytest.raises(ConfigError, match="odd"):
        ByteNet(VOCABULARY, width=2)
    with pytest.raises(ConfigError, match="even, not 15"):
        ByteNet(VOCABULARY, dim=15)


def test_normed_linear_equals_torch_weight_norm() -> None:
    mine, theirs = scattered(NormedLinear(DIM, OUT)), nn.utils.parametrizations.weight_norm(nn.Linear(DIM, OUT))
    with torch.no_grad():
        theirs.parametrizations.weight.original0.copy_(mine.length[:, None])
        theirs.parametrizations.weight.original1.copy_(mine.direction)
        theirs.bias.copy_(mine.bias)
    x = torch.randn(3, DIM)
    same(mine(x), theirs(x))
    same(mine.weight.norm(dim=1), mine.length)


def test_first_weights_keep_the_variance() -> None:
    """Through dropout, a convolution and its gate; at first the lengths are those of the directions."""
    x = torch.randn(4, 500, 64)
    for share in (0.0, 0.3):
        block = GatedConvolution(64, 3, share, causal=False)
        same(block.taps.weight, block.taps.direction)
        found = block(x * 0.1, None, None)[0] / 0.1  # small, as embeddings are: the gate is then near a half
        assert found.var().item() == pytest.approx(1.0, rel=0.15)
        linear = NormedLinear(64, 64, gain=1 - share)
        assert linear(F.dropout(x, share)).var().item() == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("causal", [False, True])
def test_a_gated_convolution_is_its_loop(causal: bool) -> None:
    """A ⊙ σ(B), token by token, the convolution as a sum over taps."""
    block, x = scattered(GatedConvolution(DIM, 3, 0.4, causal=causal)), torch.randn(1, 11, DIM)
    found = block(x, block.start(1), None)[0]
    kernel = block.taps.weight.view(2 * DIM, 3, DIM)
    for t in range(11):
        total = block.taps.bias.clone()
        for tap in range(3):
            at = t + tap - (2 if causal else 1)
            if 0 <= at < 11:
                total = total + kernel[:, tap] @ x[0, at]
        same(found[0, t], total[:DIM] * torch.sigmoid(total[DIM:]))


@pytest.mark.parametrize("packed", [False, True])
def test_multistep_attention_is_its_formula(packed: bool) -> None:
    """d = W h + b + g; α = softmax(d · z); c = √m Σ α (z + e): pair by pair, each source alone."""
    layer = scattered(
        ConvS2SLayer(GatedConvolution(8, 3, 0.0, causal=True), MultistepAttention(Site("cross", DIM, memory=2 * DIM)))
    )
    sources, queries = (7, 1, 4), (3, 5, 2)
    z, e = ([torch.randn(count, DIM) for count in sources] for _ in range(2))
    h, g = ([torch.randn(count, width) for count in queries] for width in (8, DIM))
    memory = [torch.cat([a, (a + b) * math.sqrt(0.5)], -1) for a, b in zip(z, e, strict=True)]
    above, below = (
        Layout.pack(lengths, sum(lengths) + 2) if packed else Layout.padded(lengths) for lengths in (sources, queries)
    )

    def lay(rows: list[Tensor], layout: Layout) -> Tensor:
        block = torch.randn(*layout.ok.shape, rows[0].size(-1))
        block[layout.ok] = torch.cat(rows)
        return block

    query = (layer.query(lay(h, below)) + lay(g, below)) * math.sqrt(0.5)
    looked = layer.cross(query, layer.cross.start(lay(memory, above), above), layout=below, need_weights=True)
    contexts = looked.context[below.ok].split(queries)
    for row, count in enumerate(queries):
        for t in range(count):
            d = layer.query.weight @ h[row][t] + layer.query.bias + g[row][t]
            scores = [math.exp(math.sqrt(0.5) * (d @ key).item()) for key in z[row]]
            total = torch.zeros(DIM)
            for score, key, embedded in zip(scores, z[row], e[row], strict=True):
                total += score / sum(scores) * (key + embedded) * math.sqrt(0.5)
            same(contexts[row][t], total * math.sqrt(len(scores)))


@pytest.mark.parametrize("kind", [kind for kind in ATTENTIONS if "cross" in load(ATTENTIONS, kind).uses])
def test_any_cross_attention_serves_in_convs2s(kind: str) -> None:
    """Step by step it finds what it finds in the whole target."""
    spec = {"kind": "convs2s", "dim": 8, "channels": 8, "decoder_layers": 2, "heads": 2, "cross": kind}
    model = scattered(build("weft.models:MODELS", spec, VOCABULARY))
    source, target, layout = ids(2, 9), ids(2, 6), Layout.padded([9, 4])
    whole = model.decoder(target, model.decoder.start(model.encode(source, layout))).logits
    state, steps = model.decoder.start(model.encode(source, layout)), []
    for token in target.split(1, 1):
        found = model.decoder(token, state)
        state = found.state
        steps.append(found.logits)
    same(torch.cat(steps, 1), whole)


def test_convs2s_shows_its_weights() -> None:
    model, layout = ConvS2S(VOCABULARY, dim=8, channels=8, decoder_layers=2).eval(), Layout.padded([9, 4])
    with record(model) as tape:
        model(ids(2, 9), layout, ids(2, 5), None)
    assert sorted(tape) == ["decoder.layers.0.cross", "decoder.layers.1.cross"]
    for (weights,) in tape.values():
        assert weights.shape == (2, 1, 5, 9)
        same(weights.sum(-1), torch.ones(2, 1, 5))
        assert not weights[1, :, :, 4:].any()


def test_the_encoder_of_convs2s_gets_its_share_of_the_gradient() -> None:
    """1 / (2 · looks) of it for the convolutions; embeddings, which are also values, get theirs in full besides."""
    model = ConvS2S(VOCABULARY, dim=8, channels=8, decoder_layers=3, dropout=0.0)
    tokens = ids(1, 9)
    (full,) = torch.autograd.grad(model.encoder.leave(torch.randn(1, 9, 8)).sum(), [model.encoder.leave.bias])
    memory = model.encode(tokens).memory
    (share,) = torch.autograd.grad(memory[..., :8].sum(), [model.encoder.leave.bias])
    same(share, full / 6)


@pytest.mark.parametrize("causal", [False, True])
def test_a_residual_block_is_its_formula(causal: bool) -> None:
    """Norm, ReLU and 1×1; norm, ReLU and the dilated convolution; norm, ReLU and 1×1; and the input itself."""
    block = scattered(ResidualBlock(12, Window(DIM, 3, 2, causal), dropout=0.5))
    x = torch.randn(1, 15, 12)
    inner = F.relu(block.norm_taps(block.down(F.relu(block.norm_down(x)))))
    kernel = block.taps.weight.view(DIM, 3, DIM)
    for t in range(15):
        near = [t + 2 * (tap - (2 if causal else 1)) for tap in range(3)]
        h = block.taps.bias + sum(kernel[:, tap] @ inner[0, at] for tap, at in enumerate(near) if 0 <= at < 15)
        same(block(x, block.start(1), None)[0][0, t], x[0, t] + block.up(F.relu(block.norm_up(h))))


def bytenet(**options: object) -> ByteNet:
    settings = {"dim": 16, "dilations": (1, 2, 4), "encoder_sets": 2, "decoder_sets": 2, "dropout": 0.0, **options}
    return ByteNet(VOCABULARY, **settings).eval()


@pytest.mark.parametrize("width", [3, 5])
def test_receptive_fields_are_those_of_the_formula(width: int) -> None:
    """(width − 1) · Σ dilations · sets tokens besides its own: half on each side in the encoder, all before in the decoder."""
    model, extent = bytenet(width=width, unfold_ratio=1.0), 70
    reach = (width - 1) * 7 * 2
    place = torch.arange(extent)
    away = place[:, None] - place[None]
    source, target = ids(1, extent), ids(1, extent)
    other = (source - 4 + 1) % (VOCABULARY.source - 4) + 4
    changed = torch.where(torch.eye(extent, dtype=torch.bool), other, source)
    moved = (model.encode(changed).memory != model.encode(source).memory).any(-1).t()
    assert torch.equal(moved, away.abs() <= reach // 2)
    state = model.decoder.start(model.encode(source.expand(extent, -1)))
    other = (target - 4 + 1) % (VOCABULARY.source - 4) + 4
    changed = torch.where(torch.eye(extent, dtype=torch.bool), other, target)
    found = model.decoder(changed, state).logits
    state = model.decoder.start(model.encode(source.expand(extent, -1)))
    moved = (found != model.decoder(target.expand(extent, -1), state).logits).any(-1).t()
    assert torch.equal(moved, (away >= 0) & (away <= reach))


def test_target_position_t_reads_column_t() -> None:
    """A change in one column is first seen there; out of reach of the last column it is as if there were none."""
    model, count = bytenet(), 30
    encoded = model.encode(ids(1, 10))
    assert encoded.memory.shape[1] == 12 and encoded.layout is not None
    target = ids(1, count)
    before = model.decoder(target, model.decoder.start(encoded)).logits
    for column in range(12):
        memory = encoded.memory.clone()
        memory[0, column] += 1
        after = model.decoder(target, model.decoder.start(Encoded(memory, encoded.layout))).logits
        moved = (after != before).any(-1)[0].nonzero()[:, 0]
        assert moved[0] == column
    nothing, reach, long = Encoded(torch.randn(1, 1, 16), Layout.padded([0], 1)), 2 * 7 * 2, ids(1, 60)
    found, plain = (model.decoder(long, model.decoder.start(source)).logits for source in (encoded, nothing))
    same(found[:, 12 + reach :], plain[:, 12 + reach :])
    assert (found[:, 11 + reach] != plain[:, 11 + reach]).any()


@pytest.mark.parametrize(("ratio", "extra"), [(1.0, 0), (1.2, 0), (1.5, 3), (1.1, 1)])
def test_a_source_is_unfolded_by_its_own_length(ratio: float, extra: int) -> None:
    """⌊ratio · |s|⌋ + extra columns, its tokens first, then zeros; the same in padded and packed rows."""
    unfold, rows = Unfolding(ratio, extra), [torch.randn(length, DIM) for length in LENGTHS]
    wide = [int(ratio * length) + extra for length in LENGTHS]
    block, above = torch.randn(len(rows), 25, DIM), Layout.padded(LENGTHS, 25)
    block[above.ok] = torch.cat(rows)
    padded, layout = unfold(block, above)
    assert layout.lengths.tolist() == wide
    packed, one = unfold(torch.cat([*rows, torch.randn(4, DIM)])[None], Layout.pack(LENGTHS, sum(LENGTHS) + 4))
    assert one.offsets is not None and one.offsets.diff()[:-1].tolist() == wide and one.offsets[-1] == packed.size(1)
    for number, (row, count) in enumerate(zip(rows, wide, strict=True)):
        wanted = F.pad(row, (0, 0, 0, count - len(row)))
        same(padded[number, :count], wanted)
        mine = one.segments[0] == number + 1
        same(packed[0, mine], wanted)
        assert one.positions[0, mine].tolist() == list(range(count))
    assert not padded[~layout.ok].any() and not packed[~one.ok].any()
