"""The forms of the Synthesizer against the formulas of the paper, number by number, and in their limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weft.attention.base import Site, Use
from weft.attention.luong import LocationAttention
from weft.attention.synthesizer import SynthesizerAttention
from weft.data.batch import Layout
from weft.errors import DataError
from weft.layers.decoder_state import History, select
from weft_contract.mechanism_entries import perturbed

DIM, HEADS, LENGTH, KEYS, QUERIES = 12, 3, 20, 17, 9
WIDTH = DIM // HEADS
FORMS: dict[str, dict[str, Any]] = {
    "dense": {"form": "dense"},
    "dense-one": {"form": "dense", "layers": 1},
    "random": {"form": "random"},
    "fixed": {"form": "fixed"},
    "factored_dense": {"form": "factored_dense"},
    "factored_random": {"form": "factored_random", "rank": 2},
}


def make(use: Use, **options: Any) -> SynthesizerAttention:
    part = perturbed(SynthesizerAttention(Site(use, DIM, HEADS, memory=DIM), max_length=LENGTH, **options))
    assert isinstance(part, SynthesizerAttention)
    return part


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-3)


def token_numbers(network: Any, x: Tensor, head: int) -> Tensor:
    """F(x) = W₂ relu(W₁x + b₁) + b₂, with a slice of the hidden vector per head; or Wx + b."""
    if network.hidden is not None:
        hidden = (network.hidden.weight @ x + network.hidden.bias).clamp_min(0)
        x = hidden[head * WIDTH : (head + 1) * WIDTH]
    found: Tensor = network.weight[head].t() @ x + network.bias[head, 0]
    return found


def score(part: SynthesizerAttention, form: str, head: int, x: Tensor, i: int, j: int) -> Tensor:
    scores: Any = part.scores
    if form.startswith("dense"):
        return token_numbers(scores.network, x, head)[j]
    if form in ("random", "fixed"):
        return scores.table[head, i, j]
    if form == "factored_random":
        return scores.left[head, i] @ scores.right[head, j]
    outer, inner = token_numbers(scores.outer, x, head), token_numbers(scores.inner, x, head)
    return outer[j // len(inner)] * inner[j % len(inner)]


@pytest.mark.parametrize("use", ["encoder", "causal", "cross"])
@pytest.mark.parametrize("name", FORMS)
def test_the_formula_number_by_number(name: str, use: Use) -> None:
    part = make(use, **FORMS[name])
    memory = torch.randn(1, KEYS, DIM)
    queries = torch.randn(1, QUERIES, DIM) if use == "cross" else memory
    if use == "cross":
        found = part(queries, part.init_state(memory), need_weights=True)
    else:
        found = part(memory, part.init_state(rows=1), append=memory, need_weights=True)
    values = part.value(memory)[0]
    for i in range(queries.size(1)):
        seen, heads = range(i + 1 if use == "causal" else KEYS), []
        for head in range(HEADS):
            weights = torch.stack([score(part, name, head, queries[0, i], i, j) for j in seen]).softmax(0)
            same(found.weights[0, head, i, : len(seen)], weights)
            heads.append(weights @ values[: len(seen), head * WIDTH : (head + 1) * WIDTH])
        same(found.context[0, i], part.out(torch.cat(heads)))


def test_dense_of_one_layer_is_luongs_location() -> None:
    """(W s)_j for position j, softmax over the source's length: the same weights, and the same context if W_V = W_O = 1."""
    location = LocationAttention(Site("cross", DIM, memory=DIM), max_length=LENGTH).eval()
    part = SynthesizerAttention(Site("cross", DIM, 1, memory=DIM), form="dense", layers=1, max_length=LENGTH, bias=False).eval()
    with torch.no_grad():
        network: Any = part.scores
        network.network.weight.copy_(location.head.score.place.weight.t()[None])
        for projection in (part.value, part.out):
            projection.weight.copy_(torch.eye(DIM))
    memory, queries, layout = torch.randn(2, KEYS, DIM), torch.randn(2, QUERIES, DIM), Layout.padded([KEYS, 4])
    mine = part(queries, part.init_state(memory, layout), need_weights=True)
    theirs = location(queries, location.init_state(memory, layout), need_weights=True)
    same(mine.weights, theirs.weights)
    same(mine.context, theirs.context)


@pytest.mark.parametrize("use", ["encoder", "causal"])
def test_a_table_of_zeros_is_the_mean(use: Use) -> None:
    part, x = make(use, form="random"), torch.randn(2, KEYS, DIM)
    with torch.no_grad():
        part.scores.get_parameter("table").zero_()
    found, values = part(x, part.init_state(rows=2), append=x).context, part.value(x)
    for t in range(KEYS):
        same(found[:, t], part.out(values[:, : t + 1 if use == "causal" else KEYS].mean(1)))


def test_a_fixed_table_is_saved_and_never_trained() -> None:
    part, other = make("encoder", form="fixed"), make("encoder", form="fixed")
    assert "scores.table" in part.state_dict() and "scores.table" not in dict(part.named_parameters())
    x = torch.randn(1, KEYS, DIM)
    other.load_state_dict(part.state_dict())
    same(other(x, None, append=x).context, part(x, None, append=x).context)


def test_beams_of_a_source_look_at_one_memory() -> None:
    part, memory, queries = make("cross", form="random"), torch.randn(2, KEYS, DIM), torch.randn(6, 2, DIM)
    state = select(part.init_state(memory), torch.tensor([0, 0, 0, 1, 1, 1]))
    found = part(queries, state).context
    for row in range(6):
        one = slice(row, row + 1)
        same(found[one], part(queries[one], part.init_state(memory[row // 3][None])).context)


@pytest.mark.parametrize("use", ["encoder", "causal", "cross"])
def test_what_is_longer_than_the_table_is_refused(use: Use) -> None:
    part, long = make(use, form="random"), torch.randn(1, LENGTH + 1, DIM)
    with pytest.raises(DataError, match=r"20 positions, but a sequence has 21 tokens; raise its max_length"):
        part(
            long, part.init_state(long) if use == "cross" else part.init_state(rows=1), append=None if use == "cross" else long
        )
    padded = Layout.padded([LENGTH, 3], LENGTH + 5)
    rows = torch.randn(2, LENGTH + 5, DIM)
    state = part.init_state(rows, padded) if use == "cross" else part.init_state(rows=2)
    found = part(rows, state, append=None if use == "cross" else rows, layout=None if use == "cross" else padded)
    assert found.context.isfinite().all()
    assert use != "causal" or isinstance(found.state, History)
