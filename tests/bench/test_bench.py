"""What operations are said to cost, against formulas written by hand; ceilings; and how a profile is grouped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench import flop_counter as formulas
from weft.bench.benchmarked_model import open_benchmarked_model
from weft.bench.flop_counter import Cost, FlopCounter
from weft.bench.machine import Ceilings
from weft.bench.profiler import OUTPUT, OVERHEAD, profile_step
from weft.bench.speed_report import amount, count, duration
from weft.bench.workloads import TrainingWorkload, inference_work
from weft.data.batch import PAD
from weft.layers.int8 import in_int8

FLOAT = 4
"""Bytes of a number in float32."""


def cost(work: Callable[[], object]) -> Cost:
    with FlopCounter() as counting:
        work()
    return counting.cost


@pytest.mark.parametrize("inference", [False, True])
def test_a_linear_layer(inference: bool) -> None:
    layer, x = nn.Linear(64, 128), torch.randn(10, 64)
    with torch.inference_mode(inference):
        found = cost(lambda: layer(x))
    assert found.flops == 2 * 10 * 64 * 128
    assert found.bytes == FLOAT * (10 * 64 + 64 * 128 + 128 + 10 * 128)


def test_a_backward_pass_is_two_more_products() -> None:
    layer, x = nn.Linear(64, 128), torch.randn(10, 64, requires_grad=True)
    assert cost(lambda: layer(x).sum().backward()).flops == 3 * 2 * 10 * 64 * 128


def test_bytes_are_those_read_and_written() -> None:
    x, row = torch.randn(50, 20), torch.randn(20)
    whole = FLOAT * 1000
    assert cost(lambda: x + 1).bytes == 2 * whole
    assert cost(lambda: x + row).bytes == 2 * whole + FLOAT * 20
    assert cost(lambda: x + row.expand(50, 20)).bytes == 2 * whole + FLOAT * 20
    assert cost(lambda: x.mul_(2)).bytes == 2 * whole
    assert cost(lambda: x.copy_(row)).bytes == whole + FLOAT * 20
    assert cost(lambda: x.view(20, 50).t()[3:]).bytes == 0
    assert cost(lambda: torch.empty(100)).bytes == 0
    assert cost(lambda: torch.zeros(100)).bytes == FLOAT * 100


def test_what_looks_up_rows_reads_no_more_than_them() -> None:
    table, ids = torch.randn(1000, 16), torch.tensor([1, 5, 5])
    rows = FLOAT * 3 * 16
    assert cost(lambda: F.embedding(ids, table)).bytes == 2 * rows + ids.nbytes
    assert cost(lambda: table[ids]).bytes == 2 * rows + ids.nbytes
    assert cost(lambda: table.index_copy_(0, ids, torch.randn(3, 16))).bytes == 3 * rows + ids.nbytes


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_counts_pairs_that_may_look(causal: bool) -> None:
    q, k, v = (torch.randn(2, 4, 100, 16, requires_grad=True) for _ in range(3))
    pairs = 2 * 4 * (100 * 101 // 2 if causal else 100 * 100)
    found = cost(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward())
    assert found.flops == (2 + 5) * 2 * 16 * pairs


def test_pairs_within_a_window() -> None:
    for left, right in ((2.0, 0.0), (1.0, 3.0), (math.inf, 0.0), (0.0, math.inf)):
        wanted = sum(-left <= j - i <= right for i in range(7) for j in range(5))
        assert formulas.pairs(7, 5, left, right) == wanted


def test_attention_in_pieces_forms_no_pair_across_them() -> None:
    count, q = formulas.FORMULAS["_flash_attention_forward"], torch.zeros(9, 4, 8)
    offsets = torch.tensor([0, 2, 5, 9])
    packed = {"query": q, "key": q, "cum_seq_q": offsets, "cum_seq_k": offsets}
    assert count(packed, None) == 2 * 2 * 4 * 8 * (2 * 2 + 3 * 3 + 4 * 4)
    assert count({**packed, "is_causal": True}, None) == 2 * 2 * 4 * 8 * (3 + 6 + 10)
    rows = torch.zeros(3, 10, 4, 8)  # tokens before heads
    windowed = {"query": rows, "key": rows, "cum_seq_q": None, "window_size_left": 1, "window_size_right": 0}
    assert count(windowed, None) == 2 * 2 * 3 * 4 * 8 * 19


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_a_recurrent_layer_meets_every_weight_with_every_token(kind: type[nn.RNNBase]) -> None:
    layer, x = kind(24, 32, batch_first=True, bidirectional=True), torch.randn(3, 7, 24, requires_grad=True)
    weights = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    first = [torch.zeros(2, 3, 32, requires_grad=True) for _ in range(2 if kind is nn.LSTM else 1)]
    state = tuple(first) if kind is nn.LSTM else first[0]
    assert cost(lambda: layer(x, state)).flops == 2 * 21 * weights
    assert cost(lambda: layer(x, state)[0].sum().backward()).flops == 3 * 2 * 21 * weights
    fused = {"input": x, "weight": list(layer.parameters()), "weight_buf": torch.zeros(9)}
    assert formulas.FORMULAS["_cudnn_rnn"](fused, None) == 2 * 21 * weights


@pytest.mark.skipif(torch.backends.quantized.engine not in ("x86", "fbgemm"), reason="this CPU has no products in eight bits")
def test_products_in_eight_bits() -> None:
    layer, x = nn.Sequential(nn.Linear(64, 128, bias=False)), torch.randn(10, 64)
    eight = in_int8(layer)
    with torch.inference_mode():
        found = cost(lambda: eight(x))
    assert found.flops == 2 * 10 * 64 * 128
    assert found.bytes < cost(lambda: layer(x)).bytes + 8 * x.nbytes


SMALL = [
    "train.device=cpu",
    "train.precision=float32",
    "train.batch_tokens=64",
    "model.position=sinusoidal",
    "data.vocabulary=96",
]
SHAPE = [*SMALL, "model.dim=32", "model.heads=2", "model.feedforward=48", "model.encoder_layers=2", "model.decoder_layers=1"]
PLAIN = [*SHAPE, "model.encoder_self=full", "model.decoder_self=full"]


def test_a_training_step_of_a_transformer() -> None:
    subject = open_benchmarked_model("transformer-tiny", PLAIN, length=8)
    work = TrainingWorkload(subject)
    found = count(work)
    tokens, d, f, v, t = 64, 32, 48, 96, 8
    layers = 2 * (4 * d * d + 2 * d * f) + 8 * d * d + 2 * d * f
    looks = (2 + 1 + 1) * 2 * t * d  # two products for each token, one of the other side's tokens and each number of the width
    assert work.count == tokens
    assert found.flops == 3 * 2 * tokens * (layers + looks + d * v)


def test_a_decoding_step_reads_every_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.bench.workloads.STEPS", 4)
    subject = open_benchmarked_model("transformer-tiny", PLAIN, length=8)
    work = inference_work(subject, 3, 2, print)
    found = count(work)
    weights = sum(parameter.nbytes for parameter in subject.model.decoder.parameters())  # type: ignore[union-attr]
    assert work.steps == 4 and work.count == 3 * 4
    assert found.bytes / work.steps > weights
    more = count(inference_work(subject, 6, 2, print))
    assert 1.9 < more.flops / found.flops <= 2.0


def test_a_bound_is_by_the_nearer_ceiling() -> None:
    ceilings = Ceilings({"float32": 1e9, "bf16": 4e9}, {1 << 10: 10e9, 1 << 20: 40e9, 1 << 30: 1e9})
    assert ceilings.memory == 1e9
    assert ceilings.flops("bf16") == 4e9 and ceilings.flops("float32") == 1e9
    assert [ceilings.bandwidth(1 << size) for size in (5, 15, 25, 35)] == [40e9, 40e9, 1e9, 1e9]
    work = Cost(flops=8_000_000, moved=Counter({1 << 15: 40_000, 1 << 25: 3_000_000}))
    assert ceilings.seconds(work, "bf16") == pytest.approx((2e-3, 1e-6 + 3e-3))


def test_a_profile_holds_the_whole_step() -> None:
    subject = open_benchmarked_model("transformer-tiny", PLAIN, length=8)
    work = TrainingWorkload(subject)
    count(work)
    found = profile_step(work, subject)
    profile = found.profile(work, None)
    assert sum(profile.seconds.values()) == pytest.approx(max(found.seconds, sum(found.busy.values())))
    assert {"matrix products", "attention", "normalisation", "optimiser", OUTPUT, OVERHEAD} <= set(profile.seconds)
    rnn = open_benchmarked_model("rnn-scan", ["train.device=cpu", "train.batch_tokens=64"], length=8)
    recurrent = TrainingWorkload(rnn)
    assert "recurrent" in profile_step(recurrent, rnn).busy


def test_what_is_carried_goes_on_in_the_step_that_is_measured() -> None:
    def tokens_looked_at(memory: int) -> int:
        sets = ["train.device=cpu", "train.batch_tokens=64", "task.segment=16", f"task.memory={memory}"]
        return count(
            TrainingWorkload(
                open_benchmarked_model("lm-shakespeare-xl", [*sets, "model.dim=32", "model.heads=2", "model.decoder_layers=1"])
            )
        ).flops

    assert tokens_looked_at(16) > tokens_looked_at(0)


def test_numbers_for_people() -> None:
    assert [amount(value) for value in (0, 1.5, 999, 999.7, 12_345, 2.5e12)] == ["0", "1.5", "999", "1 k", "12.3 k", "2.5 T"]
    assert amount(17_071_104, "B") == "17.1 MB"
    assert [duration(value) for value in (0.0123, 1.5)] == ["12.3 ms", "1.50 s"]


def test_made_up_rows_are_packed_where_training_packs_them() -> None:
    subject = open_benchmarked_model("transformer-tiny", [*PLAIN, "train.packed=true"], length=8)
    batch = TrainingWorkload(subject).batch
    assert batch.source.layout.packed and batch.target.shape == (1, 64)
    padded: Tensor = TrainingWorkload(open_benchmarked_model("transformer-tiny", PLAIN, length=8)).batch.source.values
    assert padded.shape == (8, 8) and not (padded == PAD).any()
