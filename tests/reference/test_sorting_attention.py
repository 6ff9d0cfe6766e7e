"""Attentions that sort: each against its definition token by token, in its limits, and at its known pitfalls."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.attention.base import Site, Use, join_heads, split_heads
from weft.attention.full import FullAttention
from weft.attention.mixers import build_self
from weft.attention.mixers.lsh_and_routing import BucketMixer, LshMixer, RoutingMixer
from weft.attention.mixers.sinkhorn import SinkhornMixer
from weft.data.batch import Layout
from weft.errors import ConfigError, DataError
from weft_contract.mechanism_entries import perturbed, same

DIM, HEADS, EXTENT, LONG = 16, 4, 71, 80
USES: tuple[Use, ...] = ("encoder", "causal")


def mixed(part: Any, x: Tensor, layout: Layout | None = None) -> Tensor:
    return part(x, part.init_state(rows=x.size(0)), layout=layout).context


def by_token(part: BucketMixer, x: Tensor, use: Use) -> Tensor:
    """One sentence x [n, D], token by token: equations 2, 4 and 6 of Kitaev et al. 2020 with k_j = q_j/‖q_j‖.

    o_i = Σ_{j ∈ P_i} exp(q_i·k_j − z) v_j, P_i the union over rounds of the nearest tokens with the hash of token i, without i
    itself unless it is alone. For clusters (Roy et al. 2021, section 4.1), P_i is the same with one round.
    """
    q, v = (split_heads(each, HEADS)[0] for each in part.query_value(x[None]).chunk(2, -1))
    buckets, found = part.assign(q[None], None)[0].tolist(), torch.zeros_like(q)
    for head in range(HEADS):
        for i in range(len(x)):
            seen: set[int] = set()
            for own in buckets[head]:
                members = [j for j in range(len(x)) if own[j] == own[i]]
                place = members.index(i)
                after = place + 1 if use == "causal" else place + part.window
                seen |= set(members[max(0, place - part.window + 1) : after])
            chosen = sorted(seen - {i}) or [i]
            scores = torch.stack([q[head, i] @ q[head, j] / q[head, j].norm() for j in chosen])
            found[head, i] = scores.softmax(-1) @ v[head, chosen]
    return part.out(join_heads(found[None]))[0]


@torch.no_grad()
def check_by_token(part: BucketMixer, use: Use, lengths: list[int]) -> None:
    """Padded rows in float64."""
    part, layout = part.double(), Layout.padded(lengths)
    x = torch.randn(len(lengths), max(lengths), DIM, dtype=torch.float64)
    wanted = torch.cat([by_token(part, x[row, :length], use) for row, length in enumerate(lengths)])
    torch.testing.assert_close(mixed(part, x, layout)[layout.mask], wanted, atol=1e-6, rtol=0)


def shared_query_key(part: BucketMixer, x: Tensor, use: Use) -> Tensor:
    """All pairs, with queries normalised to length 1 as keys; a token attends to itself only if there is no other."""
    q, v = (split_heads(each, HEADS) for each in part.query_value(x).chunk(2, -1))
    scores = q @ F.normalize(q, dim=-1).transpose(-1, -2)
    mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool)
    mask = mask.tril(-1) if use == "causal" else mask & ~torch.eye(x.size(1), dtype=torch.bool)
    mask[0, 0] |= use == "causal"
    return part.out(join_heads(scores.masked_fill(~mask, -math.inf).softmax(-1) @ v))


@pytest.mark.parametrize("use", USES)
def test_lsh_is_softmax_over_what_any_round_finds(use: Use) -> None:
    """Rows of one block and of many."""
    part = perturbed(LshMixer(Site(use, DIM, HEADS), buckets=4, rounds=3, window=5))
    for lengths in ([9, 4, 1], [LONG, 30]):
        check_by_token(part, use, lengths)


@pytest.mark.parametrize("use", USES)
def test_routing_is_softmax_over_the_nearest_of_the_cluster(use: Use) -> None:
    check_by_token(perturbed(RoutingMixer(Site(use, DIM, HEADS), clusters=5, window=4)), use, [LONG, 30, 1])


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("window", [EXTENT, 1000])
def test_one_bucket_is_attention_with_shared_queries_and_keys(use: Use, window: int) -> None:
    x = torch.randn(2, EXTENT, DIM)
    lsh = perturbed(LshMixer(Site(use, DIM, HEADS), rounds=3, window=window))
    lsh.rotations.zero_()
    routing = perturbed(RoutingMixer(Site(use, DIM, HEADS), clusters=1, window=window))
    for part in (lsh, routing):
        same(mixed(part, x), shared_query_key(part, x, use))


def test_buckets_are_the_nearest_axes_of_a_rotation() -> None:
    """Close vectors share a bucket more often than distant ones, and opposite ones never do."""
    part = LshMixer(Site("encoder", DIM, 1), rounds=500, buckets=8)
    x = torch.randn(1, 1, 1, DIM)
    others = torch.cat([x, x + 0.1 * torch.randn_like(x), x + torch.randn_like(x), -x], 2)
    own = part.assign(others, None)[0, 0]
    alike = (own == own[:, :1]).float().mean(0)
    assert alike[1] > alike[2] > alike[3] == 0


def test_rotations_are_drawn_by_refresh_alone() -> None:
    for redraw in (True, False):
        part = LshMixer(Site("encoder", DIM, HEADS), redraw=redraw).train()
        before = part.rotations.clone()
        mixed(part, torch.randn(2, 9, DIM))
        assert torch.equal(part.rotations, before)
        part.refresh(torch.Generator().manual_seed(1))
        assert torch.equal(part.rotations, before) != redraw


def clusters(decay: float) -> tuple[RoutingMixer, Tensor]:
    part = RoutingMixer(Site("encoder", DIM, HEADS), clusters=3, window=4, decay=decay)
    part.centroids[:, 2] = -part.centroids[:, :2].sum(1)  # far from everything below
    return part, torch.randn(2, EXTENT, DIM)


def test_centroids_move_to_the_mean_direction_of_their_tokens() -> None:
    """Over all passes since the last step, without padding and passes outside training."""
    part, x = clusters(decay=0.25)
    before, layout = part.centroids.clone(), Layout.padded([EXTENT, 30])
    part.eval()
    mixed(part, 3 * x)
    part.train()
    mixed(part, x, layout)
    mixed(part, 2 * x.flip(1), None)
    assert torch.equal(part.centroids, before)
    part.refresh(torch.Generator())
    tokens = [torch.cat([x[0], x[1, :30]]), 2 * x.flatten(0, 1)]
    q = split_heads(part.query_value(torch.cat(tokens)[None]).chunk(2, -1)[0], HEADS)
    way, own = F.normalize(q, dim=-1)[0], part_assign(before, q)
    for head in range(HEADS):
        for cluster in range(3):
            mine = way[head, own[head] == cluster]
            wanted = (
                F.normalize(0.25 * before[head, cluster] + 0.75 * mine.mean(0), dim=0) if len(mine) else before[head, cluster]
            )
            same(part.centroids[head, cluster], wanted)
    after = part.centroids.clone()
    part.refresh(torch.Generator())
    assert torch.equal(part.centroids, after), "what was counted is counted once"


def part_assign(centroids: Tensor, q: Tensor) -> Tensor:
    """[H, T]: the nearest centroid by angle."""
    return torch.cosine_similarity(q[0][:, :, None], centroids[:, None], dim=-1).argmax(-1)


def test_a_step_that_is_not_finite_moves_no_centroid() -> None:
    part, x = clusters(decay=0.5)
    before = part.centroids.clone()
    mixed(part.train(), x * math.nan)
    part.refresh(torch.Generator())
    assert torch.equal(part.centroids, before)


@pytest.mark.parametrize("use", USES)
def test_sinkhorn_with_one_block_is_full_attention(use: Use) -> None:
    full = perturbed(FullAttention(Site(use, DIM, HEADS)))
    part = perturbed(SinkhornMixer(Site(use, DIM, HEADS), block=EXTENT))
    part.query_key_value, part.out = full.heads.query_key_value, full.heads.out
    x = torch.randn(2, EXTENT, DIM)
    same(mixed(part, x), full(x, full.init_state(rows=2), append=x).context)


@pytest.mark.parametrize("use", USES)
def test_sinkhorn_looks_at_its_block_and_the_sorted_one(use: Use) -> None:
    """Token by token: the (earlier) tokens of its block, and the mixture given by the permutation."""
    block, extent = 5, 38
    part, x = perturbed(SinkhornMixer(Site(use, DIM, HEADS), block=block)), torch.randn(1, extent, DIM)
    q, k, v = (split_heads(each, HEADS)[0] for each in part.query_key_value(x).chunk(3, -1))
    count = -(-extent // block)
    if use == "causal":
        means = torch.stack([x[0, : i * block + 1].mean(0) for i in range(count)])
    else:
        means = torch.stack([x[0, i * block : (i + 1) * block].mean(0) for i in range(count)])
    order = part.sort(means[None], torch.ones(1, count, dtype=torch.bool))[0]
    blocks = [F.pad(each, (0, 0, 0, count * block - extent)).unflatten(1, (count, block)) for each in (k, v)]
    found = torch.zeros_like(q)
    for t in range(extent):
        mine = t // block
        own = range(mine * block, t + 1 if use == "causal" else min(extent, (mine + 1) * block))
        beside = [torch.einsum("hn,hnsd->hsd", order[:, mine], each) for each in blocks]
        if use == "causal" and mine == 0:
            beside = [each[:, :0] for each in beside]
        keys, values = (torch.cat([each[:, list(own)], extra], 1) for each, extra in zip((k, v), beside, strict=True))
        weights = (torch.einsum("hd,hsd->hs", q[:, t], keys) / math.sqrt(DIM // HEADS)).softmax(-1)
        found[:, t] = torch.einsum("hs,hsd->hd", weights, values)
    same(mixed(part, x), part.out(join_heads(found[None])))


def test_rows_and_columns_of_the_sorting_sum_to_one() -> None:
    """With the default options, also if a row has fewer blocks than another, or none."""
    part = SinkhornMixer(Site("encoder", DIM, HEADS), block=4, max_length=64).eval()
    filled, means = torch.arange(16) < torch.tensor([16, 5, 0])[:, None], torch.randn(3, 16, DIM)
    with torch.no_grad():
        part.want[2].weight /= part.want(means).std()
    order = part.sort(means, filled)
    assert order.std() > 0.05, "nothing is sorted"
    for axis, allowed in ((3, 1e-4), (2, 0.02)):
        total = order.sum(axis)
        wanted = filled[:, None].expand_as(total).float()
        assert (total - wanted).abs().max() < allowed
    assert not order[~(filled[:, None] & filled[:, :, None])[:, None].expand_as(order)].any()


def test_causal_sorting_takes_earlier_blocks_alone() -> None:
    part = perturbed(SinkhornMixer(Site("causal", DIM, HEADS), block=4, max_length=64))
    order = part.sort(torch.randn(2, 16, DIM), torch.ones(2, 16, dtype=torch.bool))
    assert not order.triu().any()
    same(order.sum(-1)[..., 1:], torch.ones(2, HEADS, 15))


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation creates."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, Tensor) and each.numel():
                self.entries = max(self.entries, each.untyped_storage().nbytes() // each.element_size())
        return found


@pytest.mark.parametrize("kind", ["lsh", "routing", "sinkhorn"])
@pytest.mark.parametrize("use", USES)
def test_no_tensor_grows_with_the_square_of_the_length(kind: str, use: Use) -> None:
    """Forward and backward."""
    options = {"max_length": 4096, "block": 16} if kind == "sinkhorn" else {"window": 16}
    part = build_self({"kind": kind, **options}, Site(use, DIM, HEADS)).train()
    sizes = []
    for extent in (512, 2048):
        with Largest() as largest:
            mixed(part, torch.randn(1, extent, DIM)).sum().backward()
        sizes.append(largest.entries)
        assert largest.entries < HEADS * extent * extent / 4
    assert sizes[1] <= 4.2 * sizes[0]


def test_what_cannot_be_is_refused() -> None:
    site = Site("encoder", DIM, HEADS)
    with pytest.raises(ConfigError, match=r"lsh: .*use 8 instead of 7"):
        build_self({"kind": "lsh", "buckets": 7}, site)
    with pytest.raises(ConfigError, match=r"temperature: .*greater than or equal to 0\.5"):
        build_self({"kind": "sinkhorn", "temperature": 0.2}, site)
    part = build_self({"kind": "sinkhorn", "max_length": 20}, site)
    with pytest.raises(DataError, match="20 positions, but a sequence has 21 tokens; raise its max_length"):
        mixed(part, torch.randn(1, 21, DIM))
