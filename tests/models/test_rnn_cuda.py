"""Recurrent models, mixed blocks and bags of n-grams on a GPU: the numbers of the CPU.

No pass over a ragged batch waits for the device, and one whose lengths the host does not know can be recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from weft.data.batch import Layout, PairBatch, Source
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.tasks.base import Loss
from weft.training.compile_and_cuda_graphs import CudaGraphSteps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LENGTHS, STYLES = (
    [7, 3, 9, 1],
    {
        "bahdanau": {"style": "bahdanau", "readout": "maxout"},
        "luong": {"style": "luong", "cell": "lstm", "encoder_layers": 2, "decoder_layers": 2, "bridge": "copy"},
        "input feeding": {"style": "luong", "cell": "lstm", "input_feeding": True},
        "fixed": {"style": "fixed", "cell": "lstm", "bidirectional": False, "reverse_source": True},
        "cho": {"style": "cho"},
        "location-aware": {"style": "bahdanau", "attention": {"kind": "location_aware"}},
        "mixed blocks": {
            "kind": "transformer",
            "encoder_self": "recurrent",
            "decoder_self": {"kind": "recurrent", "layers": 2},
        },
        "n-grams": {"kind": "bytenet", "ngrams": 4, "ngram_buckets": 50},
    },
)


@pytest.fixture(autouse=True)
def _waiting_is_allowed_afterwards() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


def make(options: dict[str, Any], dropout: float) -> Model:
    torch.manual_seed(0)
    model: Model = build_model({"kind": "rnn", "dim": 16, "dropout": dropout, **options}, Sizes(19, 19, True))
    return model


@pytest.mark.parametrize("name", STYLES)
def test_the_numbers_are_those_of_the_cpu(name: str) -> None:
    model, tokens, layout = make(STYLES[name], 0.0).eval(), torch.randint(4, 19, (4, 9)), Layout.padded(LENGTHS)
    with torch.no_grad():
        here = model(Source(tokens, layout), tokens, layout).hidden
        there = model.cuda()(Source(tokens, layout).to("cuda"), tokens.cuda(), layout.to("cuda")).hidden.cpu()
    torch.testing.assert_close(there[layout.mask], here[layout.mask], atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", STYLES)
def test_no_pass_waits_for_the_device(name: str, half: bool) -> None:
    model, tokens = make(STYLES[name], 0.2).cuda().train(), torch.randint(4, 19, (4, 9), device="cuda")
    for turn in range(3):
        layout = Layout.padded(LENGTHS).to("cuda")
        torch.cuda.set_sync_debug_mode("error" if turn else "default")
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            found = model(Source(tokens, layout), tokens, layout)
            loss, _ = model.decoder.loss(found.hidden, tokens, 0.1)
        loss.backward()
        torch.cuda.set_sync_debug_mode("default")
    assert all(value.grad is not None and value.grad.isfinite().all() for value in model.parameters())


def rounded(lengths: list[int], seed: int) -> PairBatch:
    """Rows of up to 12 tokens, the last of them empty, whose lengths the host does not know."""
    layout = replace(Layout.padded([*lengths, 0], 12), known=None, longest=12)
    tokens = torch.randint(4, 19, (5, 12), generator=torch.Generator().manual_seed(seed)) * layout.mask
    return PairBatch(torch.arange(4), Source(tokens, layout), tokens, replace(layout), tokens)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", [name for name in STYLES if name != "n-grams"])
def test_recorded_work_equals_work_as_usual(name: str, half: bool) -> None:
    model = make(STYLES[name], 0.2).cuda().train()

    def work(batch: PairBatch, update: int) -> list[Loss]:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            found = model(batch.source, batch.target, batch.target_layout)
            loss, nll = model.decoder.loss(found.hidden, batch.labels, 0.1)
        loss.backward()
        return [Loss(loss.detach(), batch.target_layout.mask.sum(), {"nll": nll.detach()})]

    replayed = CudaGraphSteps(work, torch.device("cuda"))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for seed in range(6):
        batch, found = rounded(LENGTHS if seed % 2 else [2, 12, 4, 4], seed), []
        for run in (lambda batch=batch: work(batch.to("cuda"), 1), lambda batch=batch: replayed(batch, 1)):
            model.zero_grad(set_to_none=False)
            torch.manual_seed(seed)
            (loss,) = run()
            gradient = torch.cat([value.grad.flatten() for value in model.parameters() if value.grad is not None])
            found.append((loss.total.clone(), loss.count.clone(), gradient))
        for usual, again in zip(*found, strict=True):
            torch.testing.assert_close(usual, again, rtol=1e-3, atol=1e-3)
    assert len(replayed.graphs) == 1
