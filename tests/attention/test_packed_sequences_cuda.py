"""Packed rows on a GPU: the kernel for ragged rows, and work that is recorded and replayed."""

from typing import Any

import pytest
import torch

from weft.data.batch import BOS, Layout, PairBatch, Source
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.tasks.base import Loss
from weft.training.compile_and_cuda_graphs import CudaGraphSteps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

VOCABULARY = 50
SOURCES, TARGETS = [7, 30, 1, 12], [9, 21, 4, 15]


ROTARY = {"kind": "full", "position": "rotary"}
SMALL = {"dim": 64, "encoder_layers": 2, "decoder_layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"kind": "transformer", **SMALL, "heads": 2, "encoder_self": ROTARY, "decoder_self": ROTARY},
    "post-norm": {"kind": "transformer", **SMALL, "heads": 2, "norm": "post"},
    "convs2s": {"kind": "convs2s", **SMALL, "channels": 64},
}


def model(name: str, dropout: float) -> Model:
    torch.manual_seed(0)
    options = {**MODELS[name], "dropout": dropout}
    if options["kind"] == "transformer":
        options |= {"attention_dropout": dropout, "feedforward_dropout": dropout}
    made: Model = build_model(options, Sizes(VOCABULARY, VOCABULARY, True))
    return made.cuda().train()


def packed(sources: list[int], targets: list[int], seed: int = 0) -> PairBatch:
    generator = torch.Generator().manual_seed(seed)
    above, below = (Layout.pack(lengths, 96, longest=32, pieces=16) for lengths in (sources, targets))
    blocks = [torch.randint(4, VOCABULARY, (1, 96), generator=generator) * layout.mask for layout in (above, below)]
    fed = torch.where(below.positions == 0, BOS, blocks[1].roll(1))
    return PairBatch(torch.arange(len(sources)), Source(blocks[0], above), fed, below, blocks[1])


def work(network: Model, batch: PairBatch) -> Loss:
    with torch.autocast("cuda", torch.bfloat16):
        found = network(batch.source, batch.target, batch.target_layout)
        loss, nll = network.decoder.loss(found.hidden, batch.labels, 0.1)
    loss.backward()
    return Loss(loss.detach(), batch.target_layout.mask.sum(), {"nll": nll})


def gradient(network: Model) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("name", MODELS)
def test_the_kernel_for_ragged_rows_agrees_with_masked_attention_in_float32(name: str) -> None:
    network = model(name, dropout=0.0)
    batch = packed(SOURCES, TARGETS).to("cuda")
    found = network(batch.source, batch.target, batch.target_layout)
    loss, _ = network.decoder.loss(found.hidden, batch.labels, 0.1)
    loss.backward()
    wanted = gradient(network).clone()
    network.zero_grad()
    half = work(network, batch)
    torch.testing.assert_close(half.total, loss.detach(), rtol=1e-3, atol=0.0)
    assert torch.cosine_similarity(gradient(network), wanted, 0) > 0.999


@pytest.mark.parametrize("name", MODELS)
def test_replayed_work_equals_work_as_usual(name: str) -> None:
    network = model(name, dropout=0.3)
    replayed = CudaGraphSteps(lambda batch, update: [work(network, batch)], torch.device("cuda"))
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for seed in range(6):
        batch = packed(SOURCES, TARGETS if seed % 2 else [3, 3, 3, 30], seed)
        found = []
        for run in (lambda batch=batch: work(network, batch.to("cuda")), lambda batch=batch: replayed(batch, 1)[0]):
            network.zero_grad(set_to_none=False)
            torch.manual_seed(seed)
            loss = run()
            found.append((loss.total.clone(), loss.count.clone(), gradient(network).clone()))
        for usual, again in zip(*found, strict=True):
            torch.testing.assert_close(usual, again, rtol=1e-4, atol=1e-4)
