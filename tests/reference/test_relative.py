"""Relative positions of full attention: against their papers' formulas, pair by pair, and in their limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.attention.base import Site, Use, join_heads, split_heads
from weft.attention.full import FullAttention
from weft.data.batch import Layout

DIM, HEADS, EXTENT = 16, 4, 31
WIDTH = DIM // HEADS
USES: tuple[Use, ...] = ("encoder", "causal")
KINDS: dict[str, dict[str, Any]] = {
    "alibi": {"position": "alibi"},
    "shaw": {"position": "shaw", "shaw_distance": 4},
    "shaw-keys": {"position": "shaw", "shaw_distance": 4, "shaw_values": False},
}


def make(use: Use, **options: Any) -> FullAttention:
    part = FullAttention(Site(use, DIM, HEADS), **options)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return part.eval()


def whole(part: FullAttention, x: Tensor, layout: Layout | None = None) -> Tensor:
    return part(x, part.init_state(rows=x.size(0)), append=x, layout=layout).context


def same(a: Tensor, b: Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-3)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", KINDS)
def test_the_formula_pair_by_pair(name: str, use: Use) -> None:
    """e_ij = q_i (k_j + a_ij) / √d and z_i = Σ α_ij (v_j + b_ij) (Shaw); e_ij = q_i k_j / √d − m |i − j| (Press)."""
    part, x = make(use, **KINDS[name]), torch.randn(1, EXTENT, DIM)
    q, k, v = (split_heads(y, HEADS)[0] for y in part.heads.query_key_value(x).chunk(3, -1))
    found = torch.zeros(HEADS, EXTENT, WIDTH)
    for head in range(HEADS):
        for i in range(EXTENT):
            seen = range(i + 1 if use == "causal" else EXTENT)
            scores, values = [], []
            for j in seen:
                which = max(-4, min(4, j - i)) + 4
                key, value, lower = k[head, j], v[head, j], 0.0
                if name == "alibi":
                    lower = 2.0 ** (-8 * (head + 1) / HEADS) * abs(i - j)
                else:
                    key = key + part.heads.look.keys[which]
                    value = value if name == "shaw-keys" else value + part.heads.look.values[which]
                scores.append(q[head, i] @ key / math.sqrt(WIDTH) - lower)
                values.append(value)
            found[head, i] = torch.stack(scores).softmax(0) @ torch.stack(values)
    same(whole(part, x), part.heads.out(join_heads(found[None])))


@pytest.mark.parametrize("extent", [EXTENT, 200])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", KINDS)
def test_nothing_depends_on_where_a_sequence_begins(name: str, use: Use, extent: int) -> None:
    part, x = make(use, **KINDS[name]), torch.randn(2, extent, DIM)
    moved = Layout(torch.ones(2, extent, dtype=torch.int32), torch.arange(500, 500 + extent).expand(2, -1))
    same(whole(part, x, moved), whole(part, x))
    plain = FullAttention(Site(use, DIM, HEADS)).eval()
    plain.load_state_dict(part.state_dict(), strict=False)
    assert (whole(part, x) - whole(plain, x)).abs().max() > 0.01


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", ["shaw", "shaw-keys"])
def test_tables_of_zeros_are_full_attention(name: str, use: Use) -> None:
    part, x = make(use, **KINDS[name]), torch.randn(2, EXTENT, DIM)
    with torch.no_grad():
        for table in part.heads.look.parameters():
            table.zero_()
    plain = FullAttention(Site(use, DIM, HEADS)).eval()
    plain.load_state_dict(part.state_dict(), strict=False)
    same(whole(part, x), whole(plain, x))


@pytest.mark.parametrize("use", USES)
def test_alibi_at_no_distance_is_full_attention(use: Use) -> None:
    part, x = make(use, position="alibi"), torch.randn(2, EXTENT, DIM)
    still = Layout(torch.ones(2, EXTENT, dtype=torch.int32), torch.zeros(2, EXTENT, dtype=torch.long))
    plain = FullAttention(Site(use, DIM, HEADS)).eval()
    plain.load_state_dict(part.state_dict())
    same(whole(part, x, still), whole(plain, x))


def test_distances_are_exact_in_half_precision() -> None:
    """bf16 cannot represent 257 and 1001, yet the penalty distinguishes a key at that distance from its neighbour."""
    part = FullAttention(Site("causal", 8, 1), position="alibi").bfloat16()
    with torch.no_grad():
        part.heads.query_key_value.weight.zero_()
    x = torch.randn(1, 1002, 8).bfloat16()
    weights = part(x, part.init_state(rows=1), append=x, need_weights=True).weights[0, 0, -1].float()
    step = (weights[:-1] / weights[1:]).log()
    same(step, torch.full_like(step, -(2.0**-8)), atol=1e-4)


def test_alibi_looks_both_ways_alike_in_an_encoder() -> None:
    """Reversing a sequence reverses the outputs."""
    part, x = make("encoder", position="alibi"), torch.randn(1, EXTENT, DIM)
    same(whole(part, x.flip(1)).flip(1), whole(part, x))
    one_way = make("encoder", position="shaw")
    assert (whole(one_way, x.flip(1)).flip(1) - whole(one_way, x)).abs().max() > 0.01
