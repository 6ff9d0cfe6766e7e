"""Transformer-XL's attention against its equation, term by term, and in its limits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from weft.attention.base import Site, Use, join_heads, split_heads
from weft.attention.full import FullAttention
from weft.attention.transformer_xl import XlRelativeAttention, XlScoring
from weft.data.batch import Layout
from weft.layers.embeddings_and_rotary_positions import SinusoidalPosition
from weft_contract.mechanism_entries import perturbed, same

DIM, HEADS, EXTENT = 12, 3, 21
WIDTH = DIM // HEADS
USES: tuple[Use, ...] = ("encoder", "causal")


def make(use: Use, max_distance: int = 0) -> XlRelativeAttention:
    return perturbed(XlRelativeAttention(Site(use, DIM, HEADS), max_distance=max_distance))


def whole(part: torch.nn.Module, x: Tensor) -> Tensor:
    return part(x, part.init_state(rows=x.size(0)), append=x).context


def look_of(part: XlRelativeAttention) -> XlScoring:
    look = part.heads.look
    assert isinstance(look, XlScoring)
    return look


@pytest.mark.parametrize("use", USES)
def test_it_is_the_equation_of_the_paper_pair_by_pair(use: Use) -> None:
    check_equation(make(use), use, EXTENT)


@pytest.mark.parametrize("use", USES)
def test_beyond_the_furthest_distance_all_are_alike(use: Use) -> None:
    check_equation(make(use, max_distance=4), use, 4)


def check_equation(part: XlRelativeAttention, use: Use, furthest: int) -> None:
    """A_ij = q_i·k_j + q_i·R + u·k_j + v·R with R = W_R · sinusoids(i − j), section 3.3, up to the furthest distance."""
    x = torch.randn(1, EXTENT, DIM)
    look = look_of(part)
    q, k, v = (split_heads(each, HEADS)[0] for each in part.heads.query_key_value(x).chunk(3, -1))
    found = torch.zeros(HEADS, EXTENT, WIDTH)
    for head in range(HEADS):
        own = slice(head * WIDTH, (head + 1) * WIDTH)
        u, w = look.content_bias[head, 0], look.distance_bias[head, 0]
        for i in range(EXTENT):
            scores = []
            for j in range(i + 1 if use == "causal" else EXTENT):
                waves = SinusoidalPosition(DIM)(torch.tensor([[max(-furthest, min(i - j, furthest))]]))[0, 0]
                r = look.distances.weight[own] @ waves
                terms = q[head, i] @ k[head, j], q[head, i] @ r, u @ k[head, j], w @ r
                scores.append(sum(terms) / math.sqrt(WIDTH))
            found[head, i] = torch.stack(scores).softmax(0) @ v[head, : len(scores)]
    same(whole(part, x), part.heads.out(join_heads(found[None])))


@pytest.mark.parametrize("use", USES)
def test_without_distances_and_biases_it_is_full_attention(use: Use) -> None:
    part, full = make(use), FullAttention(Site(use, DIM, HEADS), bias=False).eval()
    with torch.no_grad():
        look = look_of(part)
        for table in (look.distances.weight, look.content_bias, look.distance_bias):
            table.zero_()
    full.heads.load_state_dict({name: value for name, value in part.heads.state_dict().items() if "look" not in name})
    x = torch.randn(2, EXTENT, DIM)
    same(whole(part, x), whole(full, x))


@pytest.mark.parametrize("use", USES)
def test_it_does_not_see_where_a_sequence_begins(use: Use) -> None:
    """Without content only the distance remains: every diagonal of the scores is constant."""
    part = make(use)
    with torch.no_grad():
        part.heads.query_key_value.weight[: 2 * DIM].zero_()
    x = torch.randn(1, EXTENT, DIM)
    weights = part(x, part.init_state(rows=1), append=x, need_weights=True).weights[0]
    for away in range(1, EXTENT - 2):
        along = (weights.diagonal(-away, 1, 2) / weights.diagonal(0, 1, 2)[:, away:]).log()
        same(along, along[:, :1].expand_as(along))
        assert along.abs().max() > 1e-3, f"distance {away} is like none"


def test_queries_in_line_find_what_queries_anywhere_find() -> None:
    """The same segment after the same memory, once as plain rows and once with a layout."""
    part, memory, x = make("causal"), torch.randn(2, 9, DIM), torch.randn(2, 5, DIM)
    plain = part(x, part.init_state(memory), append=x, need_weights=True)
    laid = part(x, part.init_state(memory, Layout.padded([9, 9])), append=x, layout=Layout.padded([5, 5]), need_weights=True)
    same(plain.context, laid.context)
    same(plain.weights, laid.weights)


def test_no_vector_is_made_for_each_pair() -> None:
    """Memory saved for the backward pass grows with T · S · H, not with T · S · D."""
    extent, dim = 96, 128
    part = XlRelativeAttention(Site("causal", dim, 2))
    largest = 0

    def note(tensor: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        whole(part, torch.randn(1, extent, dim))
    assert largest <= 2 * extent * (extent + 1) * 2
