"""Monotonic and location-aware attention, and penalties on weights, against loops and in their limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.cross_attention import KEYS, QUERIES, attend, pair, site, weights_of
from weft.attention import monotonic
from weft.attention.bahdanau import AdditiveAttention
from weft.attention.location_aware import LocationAwareAttention
from weft.attention.monotonic import MonotonicAttention
from weft.data.batch import Layout
from weft.errors import ConfigError
from weft.losses.attention_penalties import coverage_penalty, guided_penalty
from weft_contract.mechanism_entries import perturbed, same

FORMS: dict[str, dict[str, Any]] = {
    "published": {"forced": False, "hold": False},
    "forced": {"forced": True, "hold": False},
    "hold": {"forced": False, "hold": True},
    "forced-hold": {"forced": True, "hold": True},
}
SCANS = {"short": (60, 60, 0.3), "long": (500, 500, 0.0), "far": (6000, 40, -2.0), "off-the-end": (500, 500, -9.0)}
"""Keys, queries, and the bias of the energies."""

AWARE: dict[str, dict[str, Any]] = {
    "published": {},
    "sharp": {"sharpening": 2.5},
    "top": {"top": 4},
    "window": {"window": 3},
    "window-top": {"window": 3, "top": 2},
    "coverage": {"coverage": True},
}


def loud(part: MonotonicAttention, factor: float = 1e5) -> MonotonicAttention:
    """Energies so far from 0 that every probability is 0 or 1."""
    with torch.no_grad():
        part.score.gain.fill_(factor)
    return part


def energies(part: MonotonicAttention, queries: Tensor, memory: Tensor) -> Tensor:
    return part.head.scores(queries, part.head.read(memory, None)).detach() + part.bias.detach()


def expected(probability: Tensor, forced: bool, hold: bool) -> Tensor:
    """α_ij = p_ij ((1 − p_{i,j−1}) α_{i,j−1}/p_{i,j−1} + α_{i−1,j}) for one row, cell by cell, without the division.

    q_j, how likely the scan comes to j, is what is divided out: q_j = (1 − p_{j−1}) q_{j−1} + (it begins at j).
    """
    queries, keys = probability.shape
    begin, rows = [1.0] + [0.0] * (keys - 1), []
    for i in range(queries):
        comes, row = 0.0, []
        for j in range(keys):
            comes = comes + begin[j]
            stops = 1.0 if hold and j == keys - 1 else probability[i, j].item()
            row.append(stops * comes)
            comes = (1 - stops) * comes
        begin = [0.0, *row[:-1]] if forced else list(row)
        if forced and hold:
            begin[-1] += row[-1]
        rows.append(row)
    return torch.tensor(rows)


@pytest.mark.parametrize("form", FORMS)
def test_monotonic_in_training_is_its_recurrence(form: str) -> None:
    part, (queries, memory) = perturbed(MonotonicAttention(site(), noise=0.0, bias=-0.5, **FORMS[form])).train(), pair(rows=1)
    found = attend(part, queries, memory)
    alpha = expected(energies(part, queries, memory)[0].sigmoid(), **FORMS[form])
    same(weights_of(found)[0], alpha)
    same(found.context[0], alpha @ memory[0])


def test_monotonic_energy_is_its_formula() -> None:
    part, (queries, memory) = perturbed(MonotonicAttention(site(6), hidden=5, bias=-1.0)), pair(rows=1, memory=6)
    net = part.score
    v = net.score.weight[0] / net.score.weight[0].square().sum().sqrt()
    for i in range(QUERIES):
        by_hand = [net.gain * (v @ torch.tanh(net.query(queries[0, i]) + net.key(h))) + part.bias for h in memory[0]]
        same(energies(part, queries, memory)[0, i], torch.cat(by_hand).detach())


def test_monotonic_stays_exact_over_a_long_source() -> None:
    """At 400 keys, most of them passed with certainty, float32 matches float64; the clamped published form does not."""
    energy = 6 * torch.randn(1, 30, 400, dtype=torch.float64) - 3
    alpha = expected(energy[0].sigmoid(), forced=False, hold=False)
    begin = torch.full((1, 400), monotonic.NEVER)
    begin[:, 0] = 0
    for i in range(30):
        passed = nn.functional.pad(nn.functional.logsigmoid(-energy[:, i].float()), (1, 0))[:, :-1].cumsum(-1)
        begin = monotonic.advance(begin, nn.functional.logsigmoid(energy[:, i].float()), passed).clamp_min(monotonic.NEVER)
        torch.testing.assert_close(begin[0].exp(), alpha[i], atol=2e-4, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_monotonic_soft_and_sure_is_the_scan(form: str) -> None:
    """If every probability is 0 or 1 the expectation equals the scan, for rows of different lengths."""
    part, lengths = loud(perturbed(MonotonicAttention(site(), noise=0.0, **FORMS[form]))), [90, 41]
    queries, memory = pair(keys=90)
    soft, hard = attend(part.train(), queries, memory, lengths), attend(part.eval(), queries, memory, lengths)
    same(weights_of(soft), weights_of(hard), atol=1e-3)
    same(soft.context, hard.context, atol=1e-2)
    assert weights_of(hard).sum() > 20


@pytest.mark.parametrize("form", [*FORMS, *(f"{form}-total" for form in FORMS)])
def test_monotonic_scan_is_its_loop_and_never_moves_back(form: str) -> None:
    options, total = FORMS[form.removesuffix("-total")], form.endswith("-total")
    forced, hold = options.values()
    # In total a scan also stops where no single position makes it stop.
    options = options | ({"stops": "total", "bias": -4.0} if total else {"bias": -0.5})
    part = loud(perturbed(MonotonicAttention(site(), **options)), 3.0)
    queries, memory = pair(rows=4, keys=150)
    energy, found = energies(part, queries, memory), attend(part, queries, memory)
    chosen = 0
    for row in range(4):
        begin, places = 0, []
        for i in range(QUERIES):
            j, passed = begin, 1.0
            while j < 150:
                passed = (passed if total else 1.0) * (1 - energy[row, i, j].sigmoid().item())
                if passed < 0.5:
                    break
                j += 1
            j = 149 if j >= 150 and hold else j
            wanted = torch.zeros(150)
            if j < 150:
                wanted[j] = 1.0
                places.append(j)
            same(weights_of(found)[row, i], wanted, atol=0)
            same(found.context[row, i], wanted @ memory[row], atol=1e-6)
            begin = min(j + forced, 149) if hold else j + forced
        assert places == sorted(places) if not forced or hold else places == sorted(set(places))
        chosen += len(set(places))
    assert chosen > 10


@pytest.mark.parametrize("scan", SCANS)
def test_monotonic_scan_scores_a_constant_number_of_pairs_per_key(scan: str) -> None:
    """A query that reads n keys, from where the last one stopped to where it stops, scores at most 2n + 2. A row that has
    stopped scores no more, so the bound holds for three rows together."""
    keys, queries, bias = SCANS[scan]
    part = loud(perturbed(MonotonicAttention(site(), bias=bias)), 3.0)
    asked, memory = pair(rows=3, keys=keys, queries=queries)
    scored: list[int] = []
    score = part.score.energy
    part.score.energy = lambda query, found: scored.append(found.size(0) * found.size(1)) or score(query, found)
    weights = weights_of(attend(part, asked, memory))
    allowed = 0
    for row in weights:
        begin = 0
        for query in row:
            place = int(query.argmax()) if query.any() else keys
            read = min(place + 1, keys) - begin
            allowed += 2 * read + 2 if read else 0
            begin = place
    assert sum(scored) <= allowed <= 3 * (2 * keys + 4 * queries)
    assert 3 * keys <= sum(scored) or weights[:, -1].any(-1).any()


def test_monotonic_at_its_default_bias_stops_where_the_published_one_does_not() -> None:
    queries, memory = pair()
    default, published = MonotonicAttention(site()).eval(), MonotonicAttention(site(), bias=-1.0).eval()
    assert weights_of(attend(default, queries, memory)).sum() > 5
    assert not weights_of(attend(published, queries, memory)).any()


def test_monotonic_noise_is_drawn_in_training_alone() -> None:
    part, (queries, memory) = MonotonicAttention(site()).train(), pair()
    first, again = attend(part, queries, memory), attend(part, queries, memory)
    assert (weights_of(first) - weights_of(again)).abs().max() > 0.1
    same(attend(part.eval(), queries, memory).context, attend(part, queries, memory).context, atol=0)


def test_monotonic_gradients_are_finite_when_sure() -> None:
    part, (queries, memory) = loud(perturbed(MonotonicAttention(site(), bias=-5.0))).train(), pair(keys=300)
    attend(part, queries, memory, [300, 7]).context.pow(2).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in part.parameters())


def test_location_aware_without_filters_is_additive() -> None:
    aware, additive, (queries, memory) = perturbed(LocationAwareAttention(site())), AdditiveAttention(site()), pair()
    additive.load_state_dict(aware.state_dict(), strict=False)
    plain = attend(additive.eval(), queries, memory, [KEYS, 6]).context
    assert (attend(aware, queries, memory, [KEYS, 6]).context - plain).abs().max() > 0.05
    nn.init.zeros_(aware.filters.weight)
    same(attend(aware, queries, memory, [KEYS, 6]).context, plain)


@pytest.mark.parametrize("form", AWARE)
def test_location_aware_is_its_formula(form: str) -> None:
    """e_ij = vᵀ tanh(W s_i + U h_j + V f_j), f = F ∗ α_{i−1}, query by query and key by key."""
    options = AWARE[form]
    part = perturbed(LocationAwareAttention(site(6), hidden=5, filters=3, width=5, **options)).train()
    queries, memory = pair(rows=1, memory=6)
    found, net = attend(part, queries, memory), part.score
    start = [1.0] + [0.0] * (KEYS - 1)
    last, total = torch.tensor(start), torch.zeros(KEYS)
    for i, q in enumerate(queries[0]):
        history = nn.functional.pad(total if options.get("coverage") else last, (2, 2))
        energy = []
        for j, h in enumerate(memory[0]):
            feature = part.filters.weight[:, 0] @ history[j : j + 5]
            energy.append(net.score(torch.tanh(net.query(q) + net.key(h) + part.feature(feature))).item())
        kept = range(KEYS)
        if "window" in options:
            middle = next(j for j in range(KEYS) if last[: j + 1].sum() >= 0.5)
            kept = range(max(0, middle - 3), min(KEYS, middle + 3))
        best = sorted(kept, key=lambda j: -energy[j])[: options.get("top", KEYS)]
        alpha = torch.zeros(KEYS)
        alpha[best] = torch.tensor([options.get("sharpening", 1.0) * energy[j] for j in best]).softmax(0)
        same(weights_of(found)[0, i], alpha)
        same(found.context[0, i], alpha @ memory[0])
        if options.get("coverage"):
            same(found.extras["coverage"][0, i], torch.minimum(alpha, total).sum())
        last, total = alpha, total + alpha


def test_coverage_begins_at_nothing() -> None:
    part, (queries, memory) = perturbed(LocationAwareAttention(site(), coverage=True)).train(), pair()
    found = attend(part, queries, memory)
    assert not found.extras["coverage"][:, 0].any()
    assert (found.extras["coverage"][:, 1] > 0.01).all()
    assert found.weights is not None
    same(found.extras["coverage"], coverage_penalty(found.weights))


def test_sums_of_alignments_are_kept_in_float32() -> None:
    """In bf16 a sum of many small weights gets stuck: 3000 ones sum to 256."""
    part, (queries, memory) = LocationAwareAttention(site(), coverage=True).bfloat16(), pair()
    state = part(queries.bfloat16(), part.init_state(memory.bfloat16())).state
    assert state.total.dtype == torch.float32
    same(state.total.sum(-1), torch.full((2,), float(QUERIES)), atol=0.2)
    weights = torch.full((1, 1, 3000, 2), 0.5).bfloat16()
    same(coverage_penalty(weights)[0, -1], torch.tensor(1.0))
    late = torch.cat([torch.full((1, 1, 3000, 1), 2.0**-9), torch.ones(1, 1, 1, 1)], 2).bfloat16()
    same(coverage_penalty(late)[0, -1], torch.tensor(1.0))


def test_location_aware_filters_have_a_middle() -> None:
    with pytest.raises(ConfigError, match="odd, not 4"):
        LocationAwareAttention(site(), width=4)


def test_guided_penalty_is_its_formula() -> None:
    """Σ_s α_ts W_ts / S with W_ts = 1 − exp(−(s/S − t/T)²/2g²), on each pair's own lengths; the same in packed rows."""
    targets, sources = [9, 4], [7, 5]
    below, above = Layout.padded(targets, 11), Layout.padded(sources, 8)
    weights = (torch.rand(2, 3, 11, 8) * above.mask[:, None, None]).requires_grad_()
    found = guided_penalty(weights, below, above, 0.3)
    for row in range(2):
        for t in range(11):
            wanted = 0.0
            for s in range(sources[row]):
                away = s / sources[row] - t / targets[row]
                cost = 1 - math.exp(-(away**2) / (2 * 0.3**2))
                wanted += weights[row, :, t, s].mean().item() * cost / sources[row]
            same(found[row, t], torch.tensor(wanted if t < targets[row] else 0.0))
    packed = torch.zeros(1, 3, 15, 14)
    packed[0, :, :9, :7], packed[0, :, 9:13, 7:12] = weights[0, :, :9, :7], weights[1, :, :4, :5]
    again = guided_penalty(packed, Layout.pack(targets, 15), Layout.pack(sources, 14), 0.3)
    same(again[0, :13], torch.cat([found[0, :9], found[1, :4]]))
    alone = guided_penalty(weights[:1, :, :9, :7], width=0.3)
    same(alone[0], found[0, :9])


def test_guided_penalty_of_the_diagonal_is_nothing() -> None:
    assert guided_penalty(torch.eye(9).expand(2, 1, 9, 9)).max() < 1e-6
    assert guided_penalty(torch.eye(9).flip(0).expand(2, 1, 9, 9)).max() > 0.1


def test_coverage_penalty_is_its_formula() -> None:
    weights = torch.rand(2, 3, 6, 5).softmax(-1)
    found = coverage_penalty(weights)
    for row in range(2):
        for t in range(6):
            wanted = 0.0
            for alpha in weights[row]:
                wanted += sum(min(alpha[t, s].item(), alpha[:t, s].sum().item()) for s in range(5)) / 3
            same(found[row, t], torch.tensor(wanted))
    assert not found[:, 0].any()
    assert coverage_penalty(torch.eye(5)[None, None]).max() == 0
