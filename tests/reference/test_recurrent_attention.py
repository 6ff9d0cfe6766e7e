"""Attentions for recurrent decoders, against the equations of their papers computed pair by pair, and in the limit.

Shapes: rows are sources, T queries against S keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.cross_attention import DIM, KEYS, QUERIES, attend, pair, site, weights_of
from weft.attention.bahdanau import AdditiveAttention, AdditiveNormedAttention
from weft.attention.base import Attention, Site
from weft.attention.core.rnn_attention import LuongScore
from weft.attention.hard import HardAttention
from weft.attention.key_value import KeyValueAttention
from weft.attention.luong import (
    ConcatAttention,
    CosineAttention,
    DotAttention,
    GeneralAttention,
    LocalMonotonicAttention,
    LocalPredictiveAttention,
    LocationAttention,
)
from weft.data.batch import Layout
from weft.errors import ConfigError, DataError
from weft_contract.mechanism_entries import perturbed, same

Energy = Callable[[Tensor, Tensor, int], Tensor]
"""(query, state, its position) → score."""


def loop(energy: Energy, queries: Tensor, memory: Tensor) -> Tensor:
    """softmax over j of energy(query i, state j, j), pair by pair, for one row."""
    rows = [[energy(q, h, j).item() for j, h in enumerate(memory[0])] for q in queries[0]]
    return torch.tensor(rows).softmax(-1)


def check_formula(part: Attention, energy: Energy, memory_width: int = DIM) -> None:
    queries, memory = pair(rows=1, memory=memory_width)
    found = attend(part, queries, memory)
    alpha = loop(energy, queries, memory)
    same(weights_of(found)[0], alpha)
    by_hand = [sum(alpha[i, j] * memory[0, j] for j in range(KEYS)) for i in range(QUERIES)]
    same(found.context[0], torch.stack(by_hand))


def test_normed_additive_is_its_formula() -> None:
    """g vᵀ/‖v‖ tanh(W s + U h + b)."""
    part = perturbed(AdditiveNormedAttention(site(6), hidden=5))
    net = part.head.score
    v = net.score.weight[0]
    unit = v / v.square().sum().sqrt()
    check_formula(part, lambda q, h, _: net.gain * (unit @ torch.tanh(net.query(q) + net.key(h))), 6)


def test_normed_additive_of_the_same_length_is_additive() -> None:
    additive, normed = perturbed(AdditiveAttention(site())), AdditiveNormedAttention(site()).eval()
    normed.load_state_dict(additive.state_dict(), strict=False)
    queries, memory = pair()
    assert (attend(normed, queries, memory).context - attend(additive, queries, memory).context).abs().max() > 0.01
    nn.init.constant_(normed.head.score.gain, additive.head.score.score.weight.norm().item())
    same(attend(normed, queries, memory).context, attend(additive, queries, memory).context)


def test_normed_additive_does_not_see_the_length_of_v() -> None:
    part, (queries, memory) = perturbed(AdditiveNormedAttention(site())), pair()
    before = attend(part, queries, memory).context
    with torch.no_grad():
        part.head.score.score.weight *= 7
    same(attend(part, queries, memory).context, before)


@pytest.mark.parametrize("scale", [False, True])
def test_dot_is_its_formula(scale: bool) -> None:
    part = DotAttention(site(), scale=scale).eval()
    check_formula(part, lambda q, h, _: q @ h / (math.sqrt(DIM) if scale else 1))


def test_dot_of_another_width_projects_the_memory() -> None:
    part = perturbed(DotAttention(site(6)))
    check_formula(part, lambda q, h, _: q @ (part.head.score.key.weight @ h), 6)


def test_general_is_its_formula() -> None:
    part = perturbed(GeneralAttention(site(6)))
    check_formula(part, lambda q, h, _: q @ part.head.score.key.weight @ h, 6)


def test_general_with_the_identity_is_dot() -> None:
    general, dot, (queries, memory) = GeneralAttention(site()).eval(), DotAttention(site()).eval(), pair()
    nn.init.eye_(general.head.score.key.weight)
    same(attend(general, queries, memory).context, attend(dot, queries, memory).context)


def test_concat_is_its_formula() -> None:
    """vᵀ tanh(W [s; h]) with W joined from its two parts."""
    part = perturbed(ConcatAttention(site(6), hidden=5))
    net = part.head.score
    assert net.query.bias is None
    matrix = torch.cat([net.query.weight, net.key.weight], 1)
    check_formula(part, lambda q, h, _: net.score.weight[0] @ torch.tanh(matrix @ torch.cat([q, h])), 6)


def test_cosine_of_unit_vectors_is_dot_and_lengths_do_not_matter() -> None:
    part, dot, (queries, memory) = CosineAttention(site(), strength=1.0).eval(), DotAttention(site()).eval(), pair()
    keys, asks = (vectors / vectors.norm(dim=-1, keepdim=True) for vectors in (memory, queries))
    same(attend(part, asks, keys).context, attend(dot, asks, keys).context)
    same(attend(part, 7 * queries, memory).context, attend(part, queries, memory).context)
    part.strength = part.head.score.strength.data.fill_(0.0)
    same(attend(part, queries, memory).context, memory.mean(1, keepdim=True).expand(-1, queries.size(1), -1))


def test_location_is_its_formula() -> None:
    part = perturbed(LocationAttention(site(6), max_length=20))
    check_formula(part, lambda q, _, j: part.head.score.place.weight[j] @ q, 6)


def test_location_without_a_query_is_the_mean() -> None:
    part, (_, memory) = perturbed(LocationAttention(site())), pair()
    found = attend(part, torch.zeros(2, 3, DIM), memory, [KEYS, 4])
    same(found.context[0, 1], memory[0].mean(0))
    same(found.context[1, 1], memory[1, :4].mean(0))


def test_location_refuses_a_source_that_is_too_long() -> None:
    part, (_, memory) = LocationAttention(site(), max_length=KEYS - 1), pair()
    with pytest.raises(DataError, match="12 positions, but a sequence has 13 tokens; raise its max_length"):
        part.init_state(memory)
    part.init_state(memory, Layout.padded([KEYS - 1, 3], KEYS))


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
def test_local_m_is_its_window_query_by_query(score: LuongScore) -> None:
    """Query t against t − D … t + D only; past the end, against the window of the last token."""
    part = perturbed(LocalMonotonicAttention(site(), window=2, score=score))
    queries, memory = pair()
    lengths = [KEYS, 6]
    found = attend(part, queries, memory, lengths)
    for row, length in enumerate(lengths):
        for t in range(QUERIES):
            centre = min(t, length - 1)
            begin, end = max(0, centre - 2), min(length, centre + 3)
            cut = memory[row : row + 1, begin:end]
            energy = part.head.scores(queries[row : row + 1, t : t + 1], part.head.read(cut, None))
            same(weights_of(found)[row, t, begin:end], energy[0, 0].softmax(-1))
            assert not weights_of(found)[row, t, :begin].any() and not weights_of(found)[row, t, end:].any()


def test_local_m_with_a_window_of_everything_is_global() -> None:
    local, general, (queries, memory) = LocalMonotonicAttention(site(), window=KEYS), GeneralAttention(site()), pair()
    local.load_state_dict(general.state_dict())
    same(attend(local.eval(), queries, memory, [KEYS, 6]).context, attend(general.eval(), queries, memory, [KEYS, 6]).context)


def test_local_p_is_its_formula() -> None:
    """p = S·σ(vᵀ tanh(W s)); softmax over p − D … p + D, times exp(−(j − p)²/2σ²), σ = D/2."""
    part = perturbed(LocalPredictiveAttention(site(), window=3))
    queries, memory = pair()
    lengths = [KEYS, 6]
    found, centres = attend(part, queries, memory, lengths), []
    for row, length in enumerate(lengths):
        for t, q in enumerate(queries[row]):
            p = length * torch.sigmoid(part.place.weight[0] @ torch.tanh(part.inner.weight @ q)).item()
            inside = [j for j in range(length) if abs(j - p) <= 3]
            align = torch.stack([q @ part.head.score.key.weight @ memory[row, j] for j in inside]).softmax(0)
            wanted = torch.zeros(KEYS)
            for j, share in zip(inside, align, strict=True):
                wanted[j] = share * math.exp(-((j - p) ** 2) / (2 * 1.5**2))
            same(weights_of(found)[row, t], wanted)
            centres.append(p / length)
    assert max(centres) - min(centres) > 0.5


def test_local_p_with_a_window_of_everything_is_global() -> None:
    local, general = perturbed(LocalPredictiveAttention(site(), window=100000)), GeneralAttention(site())
    queries, memory = pair()
    general.load_state_dict({"head.score.key.weight": local.head.score.key.weight})
    same(attend(local, queries, memory, [KEYS, 6]).context, attend(general.eval(), queries, memory, [KEYS, 6]).context)


def test_local_p_places_are_exact_in_half_precision() -> None:
    """bf16 does not distinguish positions 1024 to 1030; p is computed in float32 even with bf16 weights."""
    part = perturbed(LocalPredictiveAttention(site())).bfloat16()
    queries = torch.randn(1, QUERIES, DIM).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = part.centre(queries, torch.tensor([[2000]]))
    inner = torch.tanh(queries.double() @ part.inner.weight.double().t())
    exact = 2000 * torch.sigmoid(inner @ part.place.weight[0].double())
    assert (found - exact).abs().max() < 0.05


@pytest.mark.parametrize("split", ["k=v", "kv", "kvp"])
def test_key_value_is_its_formula(split: str) -> None:
    """M = tanh(U [k_1 … k_{t−1}] + W k_t), α = softmax(wᵀM), Σ α_j v_j: token by token; the first sees nothing."""
    parts, dim, width = {"k=v": (1, 13, 13), "kv": (2, 12, 6), "kvp": (3, 13, 4)}[split]
    part = perturbed(KeyValueAttention(Site("causal", dim, predicts=True), parts=parts))
    net, x = part.head.score, torch.randn(1, 35, dim)
    found = part(x, part.init_state(rows=1), append=x, need_weights=True)
    assert found.context.size(-1) == part.context_width == width
    assert not found.context[0, 0].any()
    key = x[0, :, :width]
    value = x[0, :, :width] if parts == 1 else x[0, :, width : 2 * width]
    for t in range(1, 35):
        energies = [net.score(torch.tanh(net.query(key[t]) + net.key(key[j]))).item() for j in range(t)]
        alpha = torch.tensor(energies).softmax(0)
        same(found.context[0, t], alpha @ value[:t])
        same(found.weights[0, 0, t, :t], alpha)


def test_key_value_of_one_part_is_additive() -> None:
    one, additive = perturbed(KeyValueAttention(site(6), parts=1)), AdditiveAttention(site(6), hidden=6)
    queries, memory = pair(memory=6)
    additive.load_state_dict(one.state_dict())
    same(attend(one, queries, memory, [KEYS, 6]).context, attend(additive.eval(), queries, memory, [KEYS, 6]).context)


def test_key_value_mixes_values_and_matches_keys_alone() -> None:
    part, (queries, memory) = perturbed(KeyValueAttention(site(12), parts=2)), pair(memory=12)
    other = torch.cat([memory[..., :6], torch.randn(2, KEYS, 6)], -1)
    before, after = attend(part, queries, memory), attend(part, queries, other)
    same(weights_of(before), weights_of(after))
    same(after.context, weights_of(before) @ other[..., 6:])


def test_key_value_refuses_what_it_cannot_split() -> None:
    with pytest.raises(ConfigError, match="even widths"):
        KeyValueAttention(Site("causal", 15))


def test_hard_finds_one_state() -> None:
    """Outside training the most likely position of additive attention; in training, samples with its probabilities."""
    hard, additive, (queries, memory) = perturbed(HardAttention(site())), AdditiveAttention(site()), pair(rows=1, queries=3)
    additive.load_state_dict(hard.state_dict())
    alpha = weights_of(attend(additive.eval(), queries, memory))
    best = alpha.argmax(-1)
    found = attend(hard, queries, memory)
    same(found.context[0], memory[0, best[0]], atol=0)
    draws = attend(hard.train(), queries.expand(20000, -1, -1), memory.expand(20000, -1, -1))
    same(weights_of(draws).mean(0), alpha[0], atol=0.02)
    same(draws.context, weights_of(draws) @ memory, atol=1e-6)
    same(draws.extras["log_prob"].exp(), (weights_of(draws) * alpha).sum(-1))
    same(draws.extras["entropy"][0], -(alpha * alpha.log()).sum(-1)[0])


@pytest.mark.parametrize("baseline", ["0", "1.5"])
def test_hard_reinforce_is_the_exact_gradient_on_average(baseline: str) -> None:
    """E[(r(h_j) − b) ∇ log α_j] = ∇ Σ_j α_j r(h_j), for any baseline b (Xu et al. 2015, equations 11 to 12)."""
    count = 40000
    part, (queries, memory) = perturbed(HardAttention(site())).train(), pair(rows=1, keys=5, queries=2)
    reward = memory[0].sin().sum(-1) + 1
    additive = AdditiveAttention(site())
    additive.load_state_dict(part.state_dict())
    (weights_of(attend(additive, queries, memory)) @ reward).sum().backward()
    found = attend(part, queries.expand(count, -1, -1), memory.expand(count, -1, -1))
    earned = (found.context.detach().sin().sum(-1) + 1) - float(baseline)
    ((earned * found.extras["log_prob"]).sum() / count).backward()
    for (name, mine), exact in zip(part.named_parameters(), additive.parameters(), strict=True):
        assert mine.grad is not None and exact.grad is not None
        error = (mine.grad - exact.grad).norm() / exact.grad.norm()
        assert exact.grad.norm() > 0.01 and error < 0.1, f"{name} is off by {error:.1%}"


def test_hard_has_no_gradient_through_the_draw() -> None:
    part, (queries, memory) = perturbed(HardAttention(site())).train(), pair()
    memory.requires_grad_()
    attend(part, queries, memory).context.sum().backward()
    assert memory.grad is not None and memory.grad.any()
    assert all(parameter.grad is None for parameter in part.parameters())


def test_hard_has_terms_of_0_for_an_empty_row() -> None:
    part, (queries, memory) = perturbed(HardAttention(site())).train(), pair()
    extras = attend(part, queries, memory, [KEYS, 0]).extras
    for name in ("log_prob", "entropy"):
        assert extras[name][0].abs().min() > 0 and (extras[name][1] == 0).all()
