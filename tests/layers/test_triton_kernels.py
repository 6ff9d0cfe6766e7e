"""Triton kernels against plain products in float32: on a GPU, or interpreted if Triton is installed without one."""

import math
import os

import pytest
import torch
from torch import Tensor

from weft.data.batch import Layout

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="needs Triton")
DEVICE, HALF = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
LIMIT = 2e-2 if GPU else 1e-5
HEADS, WIDTH = 2, 16


def near(found: Tensor, wanted: Tensor) -> None:
    found, wanted = found.detach().float(), wanted.detach()
    torch.testing.assert_close(found, wanted, rtol=LIMIT, atol=LIMIT * float(wanted.abs().max()))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(HALF).to(DEVICE)


def packed(lengths: list[int], budget: int) -> Layout:
    return Layout.pack(lengths, budget, longest=80, pieces=16).to(DEVICE)


SOURCE, TARGET = packed([7, 30, 1, 12, 70], 160), packed([9, 21, 4, 15, 40], 130)
CASES = {"self": (SOURCE, SOURCE, False), "causal": (TARGET, TARGET, True), "cross": (TARGET, SOURCE, False)}


def inputs(queries: Layout, keys: Layout) -> list[Tensor]:
    """q, k, v as layers produce them: parts of one product, so that tokens are not contiguous."""
    joint = drawn(queries.segments.size(1), 3, HEADS, WIDTH)
    q, (k, v) = joint[:, 0], drawn(keys.segments.size(1), 2, HEADS, WIDTH, seed=1).unbind(1)
    return [each.detach().requires_grad_() for each in (q, k, v)]


def attend(parts: list[Tensor], queries: Layout, keys: Layout, causal: bool, seed: int | None = None) -> Tensor:
    """Of queries, keys and values [tokens, H, D], or of some in one tensor [tokens, n, H, D]."""
    from weft.layers.kernels.triton.attention import attend_pieces

    parts = [part if part.ndim == 4 else part[:, None] for part in parts]

    where = (queries.segments[0], queries.offsets, keys.segments[0], keys.offsets)
    drops = None if seed is None else torch.tensor([seed], device=DEVICE)
    return attend_pieces(parts, *where, drops, 0.4 if drops is not None else 0.0, 80, causal)[0]


def formula(parts: list[Tensor], queries: Layout, keys: Layout, causal: bool) -> Tensor:
    q, k, v = (part.float() for part in parts)
    seen = (queries.segments[0][:, None] == keys.segments[0]) & queries.mask[0][:, None]
    if causal:
        seen = seen.tril()
    scores = torch.einsum("thd,shd->hts", q, k) / math.sqrt(WIDTH)
    weights = scores.masked_fill(~seen, -1e30).softmax(-1).masked_fill(~seen, 0.0)
    return torch.einsum("hts,shd->thd", weights, v)


@pytest.mark.parametrize("case", CASES)
def test_attention_in_pieces_is_the_formula_and_so_are_its_gradients(case: str) -> None:
    queries, keys, causal = CASES[case]
    parts = inputs(queries, keys)
    found, wanted = attend(parts, queries, keys, causal), formula(parts, queries, keys, causal)
    near(found, wanted)
    slope = drawn(*found.shape, seed=2)
    for mine, theirs in zip(torch.autograd.grad(found, parts, slope), torch.autograd.grad(wanted, parts, slope.float())):
        near(mine, theirs.float())


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("case", CASES)
def test_parts_of_one_product_find_the_same_and_get_its_gradient(case: str, seed: int | None) -> None:
    queries, keys, causal = CASES[case]
    q, k, v = inputs(queries, keys)
    together = [(q, k, v)] if queries is keys else [(q,), (k, v)]
    joint = [torch.stack(parts, 1).detach().requires_grad_() for parts in together]
    found, wanted = attend(joint, queries, keys, causal, seed), attend([q, k, v], queries, keys, causal, seed)
    assert torch.equal(found, wanted)
    slope = drawn(*found.shape, seed=2)
    grads = torch.autograd.grad(wanted, [q, k, v], slope)
    mine = [grad for part in torch.autograd.grad(found, joint, slope) for grad in part.unbind(1)]
    assert all(map(torch.equal, mine, grads))


@pytest.mark.parametrize("case", CASES)
def test_dropout_drops_the_same_weights_forward_and_backward(case: str) -> None:
    queries, keys, causal = CASES[case]
    parts = inputs(queries, keys)
    slope = drawn(queries.segments.size(1), HEADS, WIDTH, seed=2)
    found = attend(parts, queries, keys, causal, seed=3)
    _, of_k, of_v = (grad.double() for grad in torch.autograd.grad(found, parts, slope))
    total = float((found.detach().double() * slope).sum())
    # The context is linear in the values; and adding one vector to all keys changes nothing, with or without dropout.
    assert float((of_v * parts[2].detach()).sum()) == pytest.approx(
        total, rel=LIMIT, abs=LIMIT * float(slope.abs().sum()) / 100
    )
    for segment in range(1, 6):
        left = of_k[keys.segments[0] == segment].sum(0).abs().max()
        assert float(left) < 10 * LIMIT * float(of_k.abs().max())
    assert torch.equal(found, attend(parts, queries, keys, causal, seed=3))
    assert not torch.equal(found, attend(parts, queries, keys, causal, seed=4))


def test_dropout_keeps_the_mean() -> None:
    ones = [torch.zeros_like(drawn(160, HEADS, WIDTH)), *[torch.ones_like(drawn(160, HEADS, WIDTH))] * 2]
    found = torch.stack([attend(ones, SOURCE, SOURCE, False, seed)[:120].float().mean() for seed in range(20)])
    assert float(found.mean()) == pytest.approx(1.0, abs=0.03)


def test_weights_are_dropped_independently() -> None:
    """In one segment of 80 keys: one-hot values show which weights each query and head kept."""
    layout = packed([80], 80)
    q, k = torch.zeros(2, 80, HEADS, 128, dtype=HALF, device=DEVICE)
    v = torch.eye(80, 128, dtype=HALF, device=DEVICE)[:, None].expand(80, HEADS, 128).contiguous()
    kept = torch.stack([attend([q, k, v], layout, layout, False, seed)[..., :80] > 0 for seed in (1, 2, 1 << 40)]).double()
    assert float(kept.mean()) == pytest.approx(0.6, abs=0.01)
    off = kept - kept.mean()
    neighbours = [(off[0], off[1]), (off[0], off[2]), (off[:, :, 0], off[:, :, 1])]
    neighbours += [(off[:, 1:], off[:, :-1]), (off[..., 1:], off[..., :-1]), (off[:, 2:], off[:, :-2])]
    for one, other in neighbours:
        assert abs(float((one * other).mean() / off.var())) < 0.03


WIDE = 48


def norm_of(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seed: int | None = None, share: float = 0.0) -> Tensor:
    from weft.layers.kernels.triton.add_norm import add_norm

    return add_norm(x, y, weight, bias, None if seed is None else torch.tensor([seed], device=DEVICE), share, 1e-5)[0]


def sums(rows: int = 301) -> list[Tensor]:
    """x in float32, y in half precision, weight and bias."""
    x, y, (weight, bias) = drawn(1, rows, WIDE).float(), 2 * drawn(1, rows, WIDE, seed=1) + 1, drawn(2, WIDE, seed=2).float()
    return [each.detach().requires_grad_() for each in (x, y, weight, bias)]


def test_the_norm_of_a_sum_is_torchs_and_so_are_its_gradients() -> None:
    given = sums()
    found = norm_of(*given)
    assert found.dtype == HALF
    x, y, weight, bias = given
    wanted = torch.nn.functional.layer_norm(x + y.float(), (WIDE,), weight, bias, 1e-5)
    near(found, wanted)
    slope = drawn(*found.shape, seed=3)
    for mine, theirs, of in zip(
        torch.autograd.grad(found, given, slope), torch.autograd.grad(wanted, given, slope.float()), given
    ):
        assert mine.dtype == of.dtype
        near(mine, theirs.float())


def test_the_norm_of_a_sum_drops_the_same_entries_forward_and_backward() -> None:
    share = 0.3
    x, y, weight, bias = given = sums()
    found = norm_of(*given, seed=5, share=share)
    slope = drawn(*found.shape, seed=3)
    grads = torch.autograd.grad(found, given, slope)
    # The gradient of y shows which entries were dropped: 0, or that of x, scaled up.
    kept = grads[1] != 0
    assert float(kept.float().mean()) == pytest.approx(1 - share, abs=0.02)
    total = x + torch.where(kept, y.float() / (1 - share), 0.0)
    wanted = torch.nn.functional.layer_norm(total, (WIDE,), weight, bias, 1e-5)
    near(found, wanted)
    for mine, theirs in zip(grads, torch.autograd.grad(wanted, given, slope.float())):
        near(mine, theirs.float())
    assert torch.equal(found, norm_of(*given, seed=5, share=share))
    assert not torch.equal(found, norm_of(*given, seed=6, share=share))


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_a_sum_that_is_replayed_drops_other_entries_every_time() -> None:
    from weft.layers.kernels import probe_device
    from weft.layers.kernels.cuda_graph_capture import CudaGraphs
    from weft.layers.linear_norm_dropout import norm_sum

    probe_device(torch.device(DEVICE))
    norm, x, found = torch.nn.LayerNorm(WIDE, device=DEVICE), drawn(1, 64, WIDE), drawn(1, 64, WIDE, seed=1)
    left: list[Tensor] = []

    def work() -> None:
        left[:] = [norm_sum(norm, x, found, 0.3, training=True)]

    work()
    replay = CudaGraphs()(work)
    seen = []
    for _ in range(3):
        replay()
        seen.append(left[0].clone())
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


@pytest.mark.parametrize(("rows", "outputs"), [(301, 72), (5, 1100)])
def test_a_product_that_ends_in_a_relu_has_the_usual_gradients(rows: int, outputs: int) -> None:
    from weft.layers.kernels.triton.linear_relu import linear_relu

    x, weight, bias = given = [drawn(rows, 24), drawn(outputs, 24, seed=1), drawn(outputs, seed=2)]
    for each in given:
        each.requires_grad_()
    found, wanted = linear_relu(*given), (x.float() @ weight.float().t() + bias.float()).relu()
    near(found, wanted)
    slope = drawn(rows, outputs, seed=3)
    for mine, theirs in zip(torch.autograd.grad(found, given, slope), torch.autograd.grad(wanted, given, slope.float())):
        near(mine, theirs.float())


@pytest.mark.parametrize("wanted", [True, False])
def test_likelihoods_and_their_gradient(wanted: bool) -> None:
    from weft.layers.kernels.triton.fused_cross_entropy import likelihoods

    logits, gold = 3 * drawn(6, 9000), torch.randint(9000, (6,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    logits[2, 5:50] = -math.inf
    logp = logits.float().log_softmax(-1)
    likelihood, norm, slope = likelihoods(logits.clone(), gold, 0.9, wanted)
    torch.testing.assert_close(likelihood, logp.gather(1, gold[:, None])[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm, logits.float().logsumexp(-1), rtol=1e-4, atol=1e-4)
    if not wanted:
        assert slope is None
        return
    near(slope, logp.exp() - 0.9 * torch.nn.functional.one_hot(gold, 9000))


def test_a_step_reads_the_cells_of_its_ancestors() -> None:
    from weft.layers.kernels.triton.attention import attend_step

    sources, beams, room = 3, 4, 40
    k, v = drawn(2, sources, HEADS, beams, room, WIDTH)
    q = drawn(sources * beams, HEADS, WIDTH, seed=1)
    ancestry = (
        torch.randint(beams, (sources, beams, room), generator=torch.Generator().manual_seed(2)).to(torch.int16).to(DEVICE)
    )
    lengths = torch.tensor([5, 33, 40], device=DEVICE)
    cell = ancestry.long()[:, None, :, :, None].expand(sources, HEADS, beams, room, WIDTH)
    own_k, own_v = (store.gather(2, cell).float() for store in (k, v))
    scores = torch.einsum("gkhd,ghkrd->ghkr", q.float().view(sources, beams, HEADS, WIDTH), own_k) / math.sqrt(WIDTH)
    empty = torch.arange(room, device=DEVICE) >= lengths[:, None, None, None]
    wanted = torch.einsum("ghkr,ghkrd->gkhd", scores.masked_fill(empty, -math.inf).softmax(-1), own_v).flatten(0, 1)
    near(attend_step(q, k, v, ancestry, lengths, None), wanted)


def test_a_step_over_sources_of_which_one_has_no_tokens() -> None:
    from weft.layers.kernels.triton.attention import attend_step

    sources, beams, extent = 3, 4, 40
    k, v = drawn(2, sources, extent, HEADS, WIDTH).transpose(2, 3)
    q = drawn(sources * beams, HEADS, WIDTH, seed=1)
    real = torch.arange(extent, device=DEVICE) < torch.tensor([[7], [0], [40]], device=DEVICE)
    bias = torch.where(real, 0.0, -math.inf).to(HALF)
    scores = torch.einsum("gkhd,ghrd->ghkr", q.float().view(sources, beams, HEADS, WIDTH), k.float()) / math.sqrt(WIDTH)
    weights = (scores + bias[:, None, None].float()).softmax(-1).nan_to_num(0.0)
    wanted = torch.einsum("ghkr,ghrd->gkhd", weights, v.float()).flatten(0, 1)
    near(attend_step(q, k[:, :, None], v[:, :, None], None, None, bias), wanted)
