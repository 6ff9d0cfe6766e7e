"""Limit cases: a mechanism reduced to a simpler one equals it, and a formula computed by hand equals the code.

The contract suite shows that a mechanism is consistent; these tests show that it is the mechanism it claims to be.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.attention.bahdanau import AdditiveAttention
from weft.attention.base import Site, Use, join_heads, split_heads
from weft.attention.full import FullAttention
from weft.attention.local import LocalAttention
from weft.attention.mixers import build_self
from weft.attention.mixers.convolution_and_recurrence import ConvolutionMixer
from weft.data.batch import Layout
from weft.layers.convolution import TokenWindow
from weft.layers.embeddings_and_rotary_positions import SinusoidalPosition, rotate, rotation
from weft.layers.feedforward import Activation, FeedForward
from weft.models.pooling import SelfAttentivePooling
from weft.models.transformer_blocks import DecoderLayer, EncoderLayer, NormOrder, TransformerBlock
from weft_contract.mechanism_entries import perturbed, same

DIM, HEADS, EXTENT, MEMORY = 16, 4, 71, 45
SELF_USES: tuple[Use, ...] = ("encoder", "causal")


def tokens(rows: int = 2, extent: int = EXTENT, dim: int = DIM) -> Tensor:
    return torch.randn(rows, extent, dim)


def whole(part: nn.Module, x: Tensor) -> Tensor:
    return part(x, part.init_state(rows=x.size(0)), append=x).context


@pytest.mark.parametrize("use", SELF_USES)
def test_full_is_softmax_of_scaled_products(use: Use) -> None:
    part, x = perturbed(FullAttention(Site(use, DIM, HEADS))), tokens()
    q, k, v = (split_heads(y, HEADS) for y in part.heads.query_key_value(x).chunk(3, -1))
    scores = q @ k.transpose(-1, -2) / math.sqrt(DIM // HEADS)
    if use == "causal":
        scores = scores.masked_fill(~torch.ones(EXTENT, EXTENT, dtype=torch.bool).tril(), -math.inf)
    same(whole(part, x), part.heads.out(join_heads(scores.softmax(-1) @ v)))


@pytest.mark.parametrize("use", SELF_USES)
def test_full_equals_torch_multihead_attention(use: Use) -> None:
    part, x = perturbed(FullAttention(Site(use, DIM, HEADS))), tokens()
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval()
    _copy_attention(theirs, part)
    mask = ~torch.ones(EXTENT, EXTENT, dtype=torch.bool).tril() if use == "causal" else None
    found, weights = theirs(x, x, x, attn_mask=mask, average_attn_weights=False)
    mine = part(x, part.init_state(rows=2), append=x, need_weights=True)
    same(mine.context, found)
    same(mine.weights, weights)


def test_cross_equals_torch_multihead_attention() -> None:
    part, x, memory = perturbed(FullAttention(Site("cross", DIM, HEADS))), tokens(), tokens(extent=MEMORY)
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval()
    _copy_attention(theirs, part)
    layout = Layout.padded([MEMORY, 17])
    found, _ = theirs(x, memory, memory, key_padding_mask=~layout.mask)
    same(part(x, part.init_state(memory, layout)).context, found)


@pytest.mark.parametrize("use", SELF_USES)
@pytest.mark.parametrize("window", [EXTENT, 1000])
def test_local_with_a_window_of_everything_is_full(use: Use, window: int) -> None:
    full = perturbed(FullAttention(Site(use, DIM, HEADS)))
    local = LocalAttention(Site(use, DIM, HEADS), window=window).eval()
    local.load_state_dict(full.state_dict())
    x = tokens()
    same(whole(local, x), whole(full, x))


@pytest.mark.parametrize("use", SELF_USES)
def test_local_looks_at_its_window_alone(use: Use) -> None:
    """Query by query: full attention to the tokens of the window."""
    full = perturbed(FullAttention(Site("encoder", DIM, HEADS)))
    local = LocalAttention(Site(use, DIM, HEADS), window=3).eval()
    local.load_state_dict(full.state_dict())
    x = tokens(rows=1)
    found = whole(local, x)
    for t in range(EXTENT):
        begin, end = (max(0, t - 2), t + 1) if use == "causal" else (max(0, t - 3), t + 4)
        same(found[:, t], whole(full, x[:, begin:end].contiguous())[:, t - begin])


def turned(x: Tensor, positions: Tensor) -> Tensor:
    return rotate(x, rotation(positions, x.size(-1), 10000.0, x.dtype))


def test_rotary_scores_depend_on_distance_alone() -> None:
    """⟨R(p)q, R(s)k⟩ is the same for (p, s) and (p + 1000, s + 1000); and it differs for other distances."""
    q, k = torch.randn(1, HEADS, EXTENT, 8), torch.randn(1, HEADS, EXTENT, 8)
    place = torch.arange(EXTENT)[None]

    def scores(shift_query: int, shift_key: int) -> Tensor:
        return turned(q, place + shift_query) @ turned(k, place + shift_key).transpose(-1, -2)

    same(scores(1000, 1000), scores(0, 0), atol=5e-3)
    assert (scores(1000, 1003) - scores(0, 0)).abs().max() > 0.5


def test_rotary_turns_by_the_published_angle() -> None:
    """Channels (2i, 2i + 1) of the token at p are rotated by p · 10000^(−2i/d) (Su et al. 2021, equation 15)."""
    x = torch.randn(1, 1, 9, 6)
    found = turned(x, torch.arange(9)[None])
    for p in range(9):
        for i in range(3):
            angle = p * 10000 ** (-2 * i / 6)
            a, b = x[0, 0, p, 2 * i].item(), x[0, 0, p, 2 * i + 1].item()
            wanted = [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
            same(found[0, 0, p, 2 * i : 2 * i + 2], torch.tensor(wanted))


def test_rotary_attention_does_not_see_where_a_sequence_begins() -> None:
    """Shifting every position changes nothing; at angle 0 it is full attention."""
    part, x = perturbed(FullAttention(Site("causal", DIM, HEADS), position="rotary")), tokens()
    moved = Layout(torch.ones(2, EXTENT, dtype=torch.int32), torch.arange(500, 500 + EXTENT).expand(2, -1))
    same(part(x, part.init_state(rows=2), append=x, layout=moved).context, whole(part, x), atol=1e-3)
    plain = FullAttention(Site("causal", DIM, HEADS)).eval()
    plain.load_state_dict(part.state_dict())
    still = Layout(moved.segments, torch.zeros_like(moved.positions))
    same(part(x, part.init_state(rows=2), append=x, layout=still).context, whole(plain, x))
    assert (whole(part, x) - whole(plain, x)).abs().max() > 0.01


def test_rotary_angles_are_exact_in_half_precision() -> None:
    """bf16 rounds position 1001 to 1000: the angle is computed in float32, and only its sine and cosine are rounded."""
    x, place = torch.randn(1, 1, 4, 8), torch.tensor([[257, 1001, 2049, 4099]])
    same(turned(x.bfloat16(), place).float(), turned(x, place), atol=0.05)


def test_additive_is_the_formula_of_the_paper() -> None:
    """e_ij = vᵀ tanh(W s_i + U h_j), α = softmax(e), c_i = Σ α_ij h_j (Bahdanau et al. 2015), pair by pair."""
    part = perturbed(AdditiveAttention(Site("cross", DIM, memory=10), hidden=7))
    net, queries, memory = part.head.score, tokens(rows=1, extent=35), tokens(rows=1, extent=6, dim=10)
    found = part(queries, part.init_state(memory), need_weights=True)
    for i in range(35):
        energies = [
            net.score(torch.tanh(net.query(queries[0, i]) + net.key(memory[0, j]))).item() for j in range(memory.size(1))
        ]
        alpha = torch.tensor(energies).softmax(0)
        same(found.weights[0, 0, i], alpha)
        same(found.context[0, i], sum(alpha[j] * memory[0, j] for j in range(memory.size(1))))


@pytest.mark.parametrize("use", SELF_USES)
@pytest.mark.parametrize("width", [1, 3, 5])
def test_convolution_is_its_loop(use: Use, width: int) -> None:
    """A ⊙ σ(B) of the concatenated neighbours (Gehring et al. 2017), token by token."""
    part, x = perturbed(ConvolutionMixer(Site(use, DIM), width=width)), tokens(rows=1, extent=23)
    found = part(x, part.init_state(rows=1)).context
    first = -(width - 1) if use == "causal" else -(width // 2)
    for t in range(23):
        near = [x[0, t + first + tap] if 0 <= t + first + tap < 23 else torch.zeros(DIM) for tap in range(width)]
        value, gate = part.taps(torch.cat(near)).chunk(2)
        same(found[0, t], part.out(value * gate.sigmoid()))


def test_self_attentive_pooling_without_questions_is_the_mean() -> None:
    part, x, layout = SelfAttentivePooling(DIM, rows=3).train(), tokens(), Layout.padded([EXTENT, 26])
    nn.init.zeros_(part.questions.weight)
    pooled = part(x, layout)
    for row, length in enumerate((EXTENT, 26)):
        same(pooled.vectors[row], x[row, :length].mean(0).expand(3, DIM))
        # AAᵀ has 1/n everywhere, so ‖AAᵀ − I‖² = 3 (1/n − 1)² + 6/n².
        same(pooled.extras["diversity"][row], torch.tensor(3 * (1 / length - 1) ** 2 + 6 / length**2))


def test_sinusoids_are_the_published_formula() -> None:
    table = SinusoidalPosition(6)(torch.tensor([[0, 1, 2, 300]]))
    for row, p in enumerate((0, 1, 2, 300)):
        wanted = [f(p / 10000 ** (2 * i / 6)) for i in range(3) for f in (math.sin, math.cos)]
        same(table[0, row], torch.tensor(wanted), atol=1e-4)


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_feedforward_is_its_formula(activation: Activation) -> None:
    part, x = perturbed(FeedForward(DIM, 24, activation)), tokens()
    up, bias = part.up.weight, part.up.bias
    if activation == "relu":
        hidden = (x @ up.t() + bias).clamp_min(0)
    elif activation == "gelu":
        z = x @ up.t() + bias
        hidden = z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))
    else:
        gate, value = x @ up[:24].t() + bias[:24], x @ up[24:].t() + bias[24:]
        hidden = gate / (1 + torch.exp(-gate)) * value
    same(part(x), hidden @ part.down.weight.t() + part.down.bias)


@pytest.mark.parametrize("causal", [False, True])
def test_feedforward_with_neighbours_is_a_convolution(causal: bool) -> None:
    part, x = perturbed(FeedForward(DIM, 24, window=TokenWindow(DIM, 3, causal=causal))), tokens()
    theirs = nn.Conv1d(DIM, 24, 3)
    with torch.no_grad():
        theirs.weight.copy_(part.up.weight.view(24, 3, DIM).transpose(1, 2))
        theirs.bias.copy_(part.up.bias)
    hidden = theirs(F.pad(x.transpose(1, 2), (2, 0) if causal else (1, 1))).relu()
    same(part.run(x, part.init_state(2), None)[0], part.down(hidden.transpose(1, 2)))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_layer_equals_torch(norm: NormOrder) -> None:
    mine = perturbed(EncoderLayer(_block(norm), build_self("full", Site("encoder", DIM, HEADS))))
    theirs = nn.TransformerEncoderLayer(DIM, HEADS, 24, dropout=0.0, norm_first=norm == "pre", batch_first=True).eval()
    _copy_attention(theirs.self_attn, mine.mixer.attention)
    _copy_rest(theirs, mine, [mine.around_mixer, mine.around_network])
    x, layout = tokens(), Layout.padded([EXTENT, 26])
    same(mine(x, layout, {})[layout.mask], theirs(x, src_key_padding_mask=~layout.mask)[layout.mask])


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_layer_equals_torch(norm: NormOrder) -> None:
    mixer, cross = build_self("full", Site("causal", DIM, HEADS)), FullAttention(Site("cross", DIM, HEADS))
    mine = perturbed(DecoderLayer(_block(norm), mixer, cross))
    theirs = nn.TransformerDecoderLayer(DIM, HEADS, 24, dropout=0.0, norm_first=norm == "pre", batch_first=True).eval()
    _copy_attention(theirs.self_attn, mixer.attention)
    _copy_attention(theirs.multihead_attn, cross)
    _copy_rest(theirs, mine, [mine.around_mixer, mine.around_cross, mine.around_network])
    x, memory, layout = tokens(), tokens(extent=MEMORY), Layout.padded([MEMORY, 17])
    found = mine(x, mine.init_state(rows=2), cross.init_state(memory, layout), None, {})[0]
    mask = nn.Transformer.generate_square_subsequent_mask(EXTENT)
    same(found, theirs(x, memory, tgt_mask=mask, memory_key_padding_mask=~layout.mask))


def _block(norm: NormOrder) -> TransformerBlock:
    return TransformerBlock(DIM, HEADS, 24, norm=norm, dropout=0.0)


def _copy_attention(theirs: nn.MultiheadAttention, mine: FullAttention) -> None:
    heads = mine.heads
    if heads.site.use == "cross":
        weight = torch.cat([heads.query.weight, heads.key_value.weight])
        bias = torch.cat([heads.query.bias, heads.key_value.bias])
    else:
        weight, bias = heads.query_key_value.weight, heads.query_key_value.bias
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = weight.detach(), bias.detach()
    theirs.out_proj.load_state_dict(heads.out.state_dict())


def _copy_rest(theirs: nn.Module, mine: EncoderLayer | DecoderLayer, residuals: list[nn.Module]) -> None:
    theirs.linear1.load_state_dict(mine.network.up.state_dict())
    theirs.linear2.load_state_dict(mine.network.down.state_dict())
    for place, residual in enumerate(residuals, 1):
        getattr(theirs, f"norm{place}").load_state_dict(residual.norm.state_dict())
