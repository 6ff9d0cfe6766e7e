"""Attention by prefix sums against formulas: linear, Performer, random features, gated ones, and efficient attention.

Each is compared with plain matrices over all pairs, or with its recurrence token by token, and in the places where
published forms go wrong: a large key to come, a norm below zero, sums in half precision.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.attention.base import Attention, Site, Use, join_heads
from weft.attention.core.feature_maps import accumulate
from weft.attention.full import FullAttention
from weft.attention.linear import EfficientAttention, LinearAttention
from weft.attention.performer import PerformerAttention
from weft.attention.random_features import GatedRandomFeatureAttention, RandomFeatureAttention
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft_contract.mechanism_entries import perturbed

DIM, HEADS, EXTENT = 16, 4, 150
SELF_USES: tuple[Use, ...] = ("encoder", "causal")


def make(kind: type[Attention], use: Use, **options: Any) -> Any:
    """The mechanism with nonzero biases, in evaluation mode."""
    return perturbed(kind(Site(use, DIM, HEADS), **options), by=0.1)


def like(part: Any, use: Use, **options: Any) -> Any:
    """The same weights in another use."""
    other = type(part)(Site(use, DIM, HEADS), **options).eval()
    other.load_state_dict(part.state_dict())
    return other


def tokens(rows: int = 2, extent: int = EXTENT) -> Tensor:
    return torch.randn(rows, extent, DIM)


def whole(part: Any, x: Tensor, layout: Layout | None = None) -> Tensor:
    with torch.no_grad():
        found: Tensor = part(x, part.init_state(rows=x.size(0)), append=x, layout=layout).context
    return found


def same(a: Tensor, b: Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(a, b.to(a.dtype), atol=atol, rtol=1e-3)


def by_pairs(part: Any, x: Tensor, kernel: Tensor, use: Use) -> Tensor:
    """The context for these weights [B, H, T, T], before normalisation."""
    weights = kernel.tril() if use == "causal" else kernel
    v = part.heads.own(x)[2].to(weights.dtype)
    context = weights @ v / weights.sum(-1, keepdim=True)
    return part.heads.out(join_heads(context).float())


def prefix_by_prefix(causal: Any, encoder: Any, extent: int = EXTENT) -> None:
    x = tokens(extent=extent)
    found = whole(causal, x)
    for t in range(extent):
        same(found[:, t], whole(encoder, x[:, : t + 1].contiguous())[:, t])


# Linear


@pytest.mark.parametrize("use", SELF_USES)
def test_linear_is_its_quadratic_form(use: Use) -> None:
    part, x = make(LinearAttention, use), tokens()
    same(whole(part, x), by_pairs(part, x, linear_kernel(part, x), use))


def test_linear_causal_is_the_encoder_prefix_by_prefix() -> None:
    part = make(LinearAttention, "causal")
    prefix_by_prefix(part, like(part, "encoder"))


def test_linear_is_its_recurrence() -> None:
    """S_t = S_{t−1} + φ(k)vᵀ, z_t = z_{t−1} + φ(k), context φ(q)S / φ(q)·z (Katharopoulos et al. 2020, equation 18)."""
    part, x = make(LinearAttention, "causal"), tokens(rows=1)
    q, k, v = (y[0] for y in part.heads.own(x))
    q, k = F.elu(q) + 1, F.elu(k) + 1
    s, z, found = torch.zeros(HEADS, 4, 4), torch.zeros(HEADS, 4), []
    for t in range(EXTENT):
        s, z = s + k[:, t, :, None] * v[:, t, None], z + k[:, t]
        found.append((q[:, t, None] @ s)[:, 0] / (q[:, t] * z).sum(-1, keepdim=True))
    same(whole(part, x), part.heads.out(torch.cat([step.flatten()[None] for step in found])[None]))


def test_long_pieces_go_on_where_the_last_ended() -> None:
    """Pieces of several chunks, and of an incomplete one."""
    part, x = make(LinearAttention, "causal"), tokens(extent=400)
    state, found = part.init_state(rows=2), []
    for piece in x.split([150, 40, 210], 1):
        seen = part(piece, state, append=piece)
        state, found = seen.state, [*found, seen.context]
    same(torch.cat(found, 1), whole(part, x))


def linear_kernel(part: Any, x: Tensor) -> Tensor:
    q, k = (F.elu(y) + 1 for y in part.heads.own(x)[:2])
    return q @ k.transpose(-1, -2)


def rfa_estimate(part: Any, x: Tensor) -> Tensor:
    """φ(q)·φ(k), without the factor 1/m."""
    omega = (part.sigma() * part.directions()).transpose(-1, -2)
    q, k = (F.normalize(y, dim=-1) @ omega for y in part.heads.own(x)[:2])
    return (q[:, :, :, None] - k[:, :, None]).cos().sum(-1)


@pytest.mark.parametrize("use", SELF_USES)
@pytest.mark.parametrize("kind", [LinearAttention, PerformerAttention, RandomFeatureAttention])
def test_gradients_are_those_of_the_quadratic_form(kind: type[Attention], use: Use) -> None:
    """Backward passes are written by hand. With few features some norms of RFA are below the minimum of the kernel."""
    options = {} if kind is LinearAttention else {"features": 2 if kind is RandomFeatureAttention else 16}
    part, x, slope = make(kind, use, **options), tokens(), torch.randn(2, EXTENT, DIM)
    if kind is RandomFeatureAttention:
        torch.nn.init.constant_(part.sharpness, 3.0)
    inputs = [x.requires_grad_(), *part.parameters()]
    found = torch.autograd.grad((part(x, part.init_state(rows=2), append=x).context * slope).sum(), inputs)
    kernels = {LinearAttention: linear_kernel, PerformerAttention: performer_kernel, RandomFeatureAttention: rfa_estimate}
    weights = kernels[kind](part, x)
    weights = weights.tril() if use == "causal" else weights
    norm = weights.sum(-1)
    if kind is RandomFeatureAttention:
        count = torch.arange(1, EXTENT + 1) if use == "causal" else EXTENT
        assert (norm < count * part.least()).any()
        norm = torch.maximum(norm, count * part.least())
    v = part.heads.own(x)[2].to(weights.dtype)
    wanted = part.heads.out(join_heads(weights @ v / norm[..., None]).float())
    for got, right in zip(found, torch.autograd.grad((wanted * slope).sum(), inputs), strict=True):
        assert (got - right).norm() <= 2e-4 * right.norm()


@pytest.mark.parametrize("use", SELF_USES)
@pytest.mark.parametrize("kind", [LinearAttention, PerformerAttention, RandomFeatureAttention, EfficientAttention])
def test_thousands_of_tokens_in_half_precision(kind: type[Attention], use: Use) -> None:
    """The second half differs from the first: a sum in bf16 would no longer change."""
    part, x = make(kind, use), tokens(rows=1, extent=3000)
    x[:, :1500] += 2
    x[:, 1500:] -= 2
    exact = whole(part, x)[:, -50:]
    half = whole(part.to(torch.bfloat16), x.bfloat16())[:, -50:].float()
    assert ((half - exact).abs().mean() / exact.abs().mean()).item() < 0.03


# Running sums with scales


@pytest.mark.parametrize("count", [1, 4, 5, 16, 17, 70])
def test_accumulating_in_groups_is_a_loop(count: int) -> None:
    """Groups of four, so that groups of groups are summed too; scales vary by hundreds."""
    count = int(count)
    sums, scale = torch.randn(2, 3, count, 5), 100 * torch.randn(2, 3, count)
    run, top = accumulate(sums, scale, group=4)
    assert top is not None
    same(top, scale.cummax(-1).values)
    for j in range(count):
        level = scale[..., : j + 1].amax(-1, keepdim=True)
        same(run[..., j, :], (sums[..., : j + 1, :] * (scale[..., : j + 1] - level).exp()[..., None]).sum(-2))


# Performer


def performer_kernel(part: Any, x: Tensor) -> Tensor:
    """φ(q)·φ(k) of the paper, equation 7, without any stabiliser, in float64."""
    q, k, _ = (y.double() / 4**0.25 for y in part.heads.own(x))
    omega = part.directions().double()
    q, k = ((y @ omega.T - y.square().sum(-1, keepdim=True) / 2).exp() for y in (q, k))
    return q @ k.transpose(-1, -2) / len(omega)


@pytest.mark.parametrize("use", SELF_USES)
def test_performer_is_its_quadratic_form(use: Use) -> None:
    """Also with keys of very different lengths: nothing is added to features, so a weight of 1e-9 stays 1e-9."""
    part, x = make(PerformerAttention, use, features=32), tokens()
    x[:, ::7] *= 5
    same(whole(part, x), by_pairs(part, x, performer_kernel(part, x), use))


def test_performer_causal_is_the_encoder_prefix_by_prefix() -> None:
    part = make(PerformerAttention, "causal", features=32)
    prefix_by_prefix(part, like(part, "encoder", features=32), extent=80)


def check_root_law(kind: type[Attention], exact: Tensor, x: Tensor, weights: dict[str, Tensor]) -> float:
    """64 times the features give about an eighth of the error (median over draws); returns the smallest error."""
    errors = []
    for features in (64, 512, 4096):
        found = []
        for _ in range(15):
            part = kind(Site("encoder", DIM, HEADS), features=features).eval()  # type: ignore[call-arg]
            part.load_state_dict(weights, strict=False)
            found.append((whole(part, x) - exact).abs().mean())
        errors.append(torch.stack(found).median().item())
    assert errors[0] > errors[1] > errors[2], errors
    assert 4.5 < errors[0] / errors[2] < 12, errors
    return errors[-1]


def test_performer_error_falls_with_the_root_of_features() -> None:
    full, x = make(FullAttention, "encoder"), tokens(rows=1, extent=60) / 2
    exact, weights = whole(full, x), full.state_dict()
    assert check_root_law(PerformerAttention, exact, x, weights) < 0.03 * exact.std().item()


def test_performer_directions_prefer_none_and_are_orthogonal() -> None:
    """With plain QR the first row always points the same way, and no number of features removes the error."""
    part = make(PerformerAttention, "encoder", features=10)
    generator = torch.Generator().manual_seed(3)
    drawn = torch.stack([part.directions.draw(generator) for _ in range(800)])
    assert (drawn.mean(0).abs() < 4 / math.sqrt(800)).all()
    same(drawn.square().sum(-1).mean(), torch.tensor(4.0), atol=0.1)
    block = F.normalize(drawn[:, :4], dim=-1)
    same(block @ block.transpose(-1, -2), torch.eye(4).expand(800, 4, 4))
    independent = make(PerformerAttention, "encoder", features=10, orthogonal=False).directions()
    assert (F.normalize(independent[:4], dim=-1) @ F.normalize(independent[:4], dim=-1).T - torch.eye(4)).abs().max() > 0.05


def check_heavy_key(part: Any, quiet: Tensor, heavy: Tensor) -> None:
    """One key that dominates all others, in the first chunk, in the last and at the end, changes nothing before it.

    A maximum over the chunk, or over all keys, would make everything before it vanish.
    """
    for place in (30, 70, 149):
        other = quiet.clone()
        other[:, place] = heavy[:, place]
        before, after = whole(part, quiet), whole(part, other)
        same(after[:, :place], before[:, :place])
        assert after.isfinite().all()


def test_performer_is_not_changed_by_a_heavy_key_to_come() -> None:
    """The longer a key, the less it weighs: exp(ωᵀk − ‖k‖²/2)."""
    x = tokens(rows=1)
    check_heavy_key(make(PerformerAttention, "causal"), 30 * x, x)


def test_efficient_is_not_changed_by_a_heavy_key_to_come() -> None:
    x = tokens(rows=1)
    check_heavy_key(make(EfficientAttention, "causal"), x, 400 * x)


def test_performer_in_half_precision_has_features_at_all() -> None:
    """With ‖x‖²/2 in the hundreds and no stabiliser, every feature is 0 in half precision, and most are in float32."""
    part, x = make(PerformerAttention, "encoder", features=64), 6 * tokens(rows=1, extent=40)
    kernel = performer_kernel(part, x)
    assert (kernel.float() == 0).float().mean() < 1  # float64 can represent them
    for dtype, allowed in ((torch.float32, 1e-3), (torch.bfloat16, 0.1)):
        x = x.to(dtype).float()
        exact = by_pairs(part, x, performer_kernel(part, x), "encoder")
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            found = whole(part, x).float()
        assert ((found - exact).abs().mean() / exact.abs().mean()).item() < allowed


# Random features


def rfa_kernel(part: Any, x: Tensor) -> Tensor:
    """exp(−‖σ(q − k)‖²/2) of unit vectors: what the features estimate."""
    q, k = (F.normalize(y, dim=-1) * part.sigma() for y in part.heads.own(x)[:2])
    return (-torch.cdist(q, k).square() / 2).exp()


def test_rfa_error_falls_with_the_root_of_features() -> None:
    part, x = make(RandomFeatureAttention, "encoder", features=8), tokens(rows=1, extent=60)
    exact = by_pairs(part, x, rfa_kernel(part, x), "encoder")
    weights = {name: value for name, value in part.state_dict().items() if name != "directions.bits"}
    check_root_law(RandomFeatureAttention, exact, x, weights)


def test_rfa_is_the_softmax_of_unit_vectors() -> None:
    """exp(−‖q − k‖²/2) is exp(q·k) up to a factor that cancels in the weights."""
    part, x = make(RandomFeatureAttention, "encoder"), tokens(rows=1, extent=30)
    torch.nn.init.constant_(part.sharpness, math.log(1 / (math.sqrt(2) - 1)))  # σ = 1
    q, k = (F.normalize(y, dim=-1) for y in part.heads.own(x)[:2])
    kernel = rfa_kernel(part, x)
    same(kernel / kernel.sum(-1, keepdim=True), (q @ k.transpose(-1, -2)).softmax(-1))


@pytest.mark.parametrize("use", SELF_USES)
def test_rfa_norms_are_never_less_than_the_kernel_allows(use: Use) -> None:
    """One feature and the narrowest kernel: most estimated norms are wrong, some even negative, yet no context explodes."""
    part, x = make(RandomFeatureAttention, use, features=1), tokens()
    torch.nn.init.constant_(part.sharpness, 10.0)
    q, k, v = part.heads.own(x)
    weights = part.phi(q).phi @ part.phi(k).phi.transpose(-1, -2)
    norm = (weights.tril() if use == "causal" else weights).sum(-1)
    assert (norm <= 0).float().mean() > 0.02
    with torch.no_grad():
        part.heads.out.weight.copy_(torch.eye(DIM))
        part.heads.out.bias.zero_()
    largest = v.abs().max() * part.features / 2 / part.least().min()
    assert whole(part, x).abs().max() <= 1.01 * largest


@pytest.mark.parametrize("bias", [-4.0, 0.0, 3.0, 12.0])
def test_gated_rfa_is_its_recurrence(bias: float) -> None:
    """S_t = g_t S_{t−1} + (1 − g_t) φ(k_t)v_tᵀ, z_t likewise (Peng et al. 2021, section 3.2), with open and closed gates."""
    part, x = make(GatedRandomFeatureAttention, "causal", features=16), tokens(rows=1, extent=400)
    torch.nn.init.constant_(part.gate.bias, bias)
    q, k, v = (y[0].double() for y in part.heads.own(x))
    q, k = (part.phi(y.float()[None]).phi[0].double() for y in (q, k))
    gates = part.gate(x)[0].T.double().sigmoid()
    s, z, mass, found = torch.zeros(HEADS, 32, 4).double(), torch.zeros(HEADS, 32).double(), torch.zeros(HEADS).double(), []
    for t in range(400):
        g = gates[:, t, None]
        s = g[..., None] * s + (1 - g)[..., None] * k[:, t, :, None] * v[:, t, None]
        z, mass = g * z + (1 - g) * k[:, t], g[:, 0] * mass + 1 - g[:, 0]
        norm = torch.maximum((q[:, t] * z).sum(-1), mass * part.least()[:, 0])
        found.append(((q[:, t, None] @ s)[:, 0] / norm[:, None]).flatten())
    same(whole(part, x), part.heads.out(torch.stack(found).float())[None], atol=1e-4)


def test_gated_rfa_with_gates_that_never_close_is_rfa() -> None:
    """As g → 1 all weights (1 − g)g^n become equal."""
    part, x = make(GatedRandomFeatureAttention, "causal"), tokens()
    torch.nn.init.zeros_(part.gate.weight)
    torch.nn.init.constant_(part.gate.bias, 18.0)
    plain = RandomFeatureAttention(Site("causal", DIM, HEADS)).eval()
    plain.load_state_dict(part.state_dict(), strict=False)
    same(whole(part, x), whole(plain, x), atol=1e-4)


def test_gated_rfa_is_refused_where_there_is_no_past() -> None:
    with pytest.raises(ConfigError, match=r"does not support encoder use, only causal: .* use rfa"):
        GatedRandomFeatureAttention(Site("encoder", DIM, HEADS))


# Efficient attention


def test_efficient_is_its_formula() -> None:
    """softmax_d(Q) (softmax_n(K)ᵀ V), row by row over its own length."""
    part, x, lengths = make(EfficientAttention, "encoder"), tokens(), (EXTENT, 40)
    found = whole(part, x, Layout.padded(lengths))
    for row, length in enumerate(lengths):
        q, k, v = part.heads.own(x[row : row + 1, :length])
        by_hand = q.softmax(-1) @ (k.softmax(2).transpose(-1, -2) @ v)
        same(found[row : row + 1, :length], part.heads.out(join_heads(by_hand)))


def test_efficient_causal_is_the_encoder_prefix_by_prefix() -> None:
    part = make(EfficientAttention, "causal")
    prefix_by_prefix(part, like(part, "encoder"))


def test_efficient_causal_follows_a_huge_key() -> None:
    """After it, channels in which it is large contain its value alone, in its chunk and in later ones."""
    part, x = make(EfficientAttention, "causal"), tokens(rows=1)
    x[:, 10] *= 200
    both = like(part, "encoder")
    found = whole(part, x)
    for t in (10, 11, 50, 100, 149):
        same(found[:, t], whole(both, x[:, : t + 1].contiguous())[:, t])


# Redrawing


@pytest.mark.parametrize("kind", [PerformerAttention, RandomFeatureAttention, GatedRandomFeatureAttention])
def test_features_are_redrawn_as_often_as_asked(kind: type[Attention]) -> None:
    for every, least, most in ((0, 0, 0), (1, 60, 60), (5, 4, 22)):
        part, generator, times = make(kind, "causal", redraw=every, features=8), torch.Generator().manual_seed(1), 0
        for _ in range(60):
            before = part.directions().clone()
            part.directions.refresh(generator)
            times += not torch.equal(before, part.directions())
        assert least <= times <= most


def test_redrawing_depends_on_the_generator_alone() -> None:
    """So all processes draw the same, and so does a resumed run."""
    parts = [make(PerformerAttention, "causal", redraw=1) for _ in range(2)]
    for part in parts:
        part.directions.refresh(torch.Generator().manual_seed(5))
    assert torch.equal(parts[0].directions(), parts[1].directions())


def test_features_are_no_numbers_to_take_a_mean_of() -> None:
    """Averaging of checkpoints changes floating-point tensors; the newest draw must survive it, and half precision too."""
    part = make(PerformerAttention, "causal")
    drawn = part.directions().clone()
    assert all(not value.is_floating_point() for name, value in part.state_dict().items() if "directions" in name)
    assert torch.equal(part.to(torch.bfloat16).directions(), drawn)
