"""Adapters of linear layers, embeddings and output layers: what they compute, what is trained, and how they are merged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from tests.helpers import small_task
from weft.data.batch import PairBatch
from weft.errors import ConfigError
from weft.layers.int8 import in_int8
from weft.layers.lora import Lora, LoraEmbedding, LoraLinear, LoraOutput, LoraTable, add_adapters, merge_adapters
from weft.models.base import LinearDecoder, Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.runs.weight_files import read_tensors, without_ties
from weft_studies.answering.memory_network import MemoryEncoder

SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"dim": 16, "heads": 2, "feedforward": 24, "encoder_layers": 1, "decoder_layers": 1},
    "rnn": {"dim": 16, "encoder_layers": 1, "decoder_layers": 1},
    "bytenet": {"dim": 16, "encoder_sets": 1, "decoder_sets": 1, "dilations": [1]},
    "convs2s": {"dim": 16, "encoder_layers": 1, "decoder_layers": 1, "max_length": 32},
}
SHARING = ("all", "output", "none")
BATCH = small_task.small_batch(3)
BOTH = Lora(rank=2, alpha=3.0, embedding_rank=4)


def small_model(kind: str = "transformer", share: str = "all", dtype: torch.dtype = torch.float64) -> Model:
    torch.manual_seed(0)
    made = build_model({"kind": kind, **SMALL[kind], "share_embeddings": share}, Sizes(20, 20, shared=True))
    assert isinstance(made, Model)
    return made.to(dtype).eval()


def adapted_model(kind: str = "transformer", share: str = "all", lora: Lora = BOTH) -> Model:
    """A model whose adapters have been trained, as it were."""
    model = small_model(kind, share)
    add_adapters(model, lora)
    for layer in adapters(model):
        nn.init.normal_(layer.lora_b, std=0.3)
    return model


def adapters(model: nn.Module) -> Iterator[LoraLinear | LoraTable]:
    return (layer for layer in model.modules() if isinstance(layer, LoraLinear | LoraTable))


def results(model: Model, batch: PairBatch = BATCH) -> list[Tensor]:
    """The logits, the loss, and the logits of three tokens, which a shortlist asks for."""
    hidden = model(batch.source, batch.target, batch.target_layout).hidden
    decoder = model.decoder
    loss, nll = decoder.loss(hidden, batch.labels, 0.1)
    return [decoder.logits(hidden), loss, nll, decoder.among(torch.tensor([3, 7, 9]))(hidden)]


@pytest.mark.parametrize("share", SHARING)
@pytest.mark.parametrize("kind", SMALL)
def test_a_new_adapter_changes_no_bit(kind: str, share: str) -> None:
    model = small_model(kind, share, torch.float32)
    before = results(model)
    add_adapters(model, BOTH)
    assert any(isinstance(layer, LoraOutput) for layer in model.modules())
    assert all(torch.equal(a, b) for a, b in zip(before, results(model), strict=True))


@pytest.mark.parametrize("share", SHARING)
@pytest.mark.parametrize("kind", SMALL)
@torch.no_grad()
def test_merged_adapters_compute_the_same(kind: str, share: str) -> None:
    """In every family: no layer uses the weights of an adapted layer without its adapter."""
    model, plain = adapted_model(kind, share), small_model(kind, share)
    before = results(model)
    merge_adapters(model)
    assert not list(adapters(model))
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(before, results(model), strict=True))
    assert not any(torch.allclose(a, b, atol=1e-3) for a, b in zip(before, results(plain), strict=True))
    assert list(without_ties(model.state_dict())) == list(without_ties(plain.state_dict()))
    assert list(model.state_dict()) == list(plain.state_dict())


def test_rows_and_logits_are_those_of_the_formula() -> None:
    """Row v is W[v] + (alpha / rank) · Σ B[v, k] A[k], for lookups and for logits, written as loops."""
    model = adapted_model()
    decoder = model.decoder
    assert isinstance(decoder, LinearDecoder) and isinstance(decoder.output, LoraOutput)
    layer = model.encoder.get_submodule("front.table")
    assert isinstance(layer, LoraEmbedding)
    weight, a, b = layer.frozen.tolist(), layer.lora_a.tolist(), layer.lora_b.tolist()
    rows = [
        [weight[v][d] + 3.0 / 4 * sum(b[v][k] * a[k][d] for k in range(4)) for d in range(len(weight[v]))]
        for v in range(len(weight))
    ]
    tokens = torch.tensor([[5, 0, 19], [5, 5, 2]])
    looked_up = torch.tensor([[rows[v] for v in line] for line in tokens.tolist()], dtype=torch.float64)
    torch.testing.assert_close(layer(tokens), looked_up, rtol=0, atol=1e-12)
    hidden = torch.randn(2, 16, dtype=torch.float64)
    logits = [[sum(h * r for h, r in zip(state, row, strict=True)) for row in rows] for state in hidden.tolist()]
    torch.testing.assert_close(decoder.logits(hidden), torch.tensor(logits, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", SHARING)
def test_the_loss_has_the_gradients_of_a_whole_table(share: str) -> None:
    """∂/∂B = s · G Aᵀ and ∂/∂A = s · Bᵀ G, where G is the gradient of the table, summed over its uses."""
    model, merged = adapted_model(share=share), adapted_model(share=share)
    merge_adapters(merged)
    for each in (model, merged):
        each.decoder.loss(each(BATCH.source, BATCH.target, BATCH.target_layout).hidden, BATCH.labels, 0.1)[0].backward()
    tables = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraTable)}
    assert tables
    for name, layer in tables.items():
        whole = merged.get_parameter(f"{name}.weight").grad
        assert whole is not None and layer.lora_a.grad is not None and layer.lora_b.grad is not None
        torch.testing.assert_close(layer.lora_b.grad, layer.scale * whole @ layer.lora_a.T)
        torch.testing.assert_close(layer.lora_a.grad, layer.scale * layer.lora_b.T @ whole)


def test_frozen_tables_get_no_gradient() -> None:
    model = adapted_model()
    for name, weight in model.named_parameters():
        weight.requires_grad_(".lora_" in name)
    results(model)[1].backward()
    trained = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert trained == {name for name, _ in model.named_parameters() if ".lora_" in name}
    assert all(weight.grad is None or weight.grad.abs().sum() > 0 for weight in model.parameters())


@pytest.mark.parametrize(("share", "tables"), [("all", 1), ("output", 2), ("none", 3)])
def test_tied_tables_stay_tied(share: str, tables: int) -> None:
    model = adapted_model(share=share)
    uses = [model.get_submodule(name) for name in ("encoder.front.table", "decoder.embedding.table", "decoder.output")]
    assert all(isinstance(layer, LoraTable) for layer in uses)
    assert len({layer.lora_a.data_ptr() for layer in uses if isinstance(layer, LoraTable)}) == tables
    merge_adapters(model)
    uses = [model.get_submodule(name) for name in ("encoder.front.table", "decoder.embedding.table", "decoder.output")]
    assert [type(layer) for layer in uses] == [nn.Embedding, nn.Embedding, nn.Linear]
    assert len({id(layer.get_parameter("weight")) for layer in uses}) == tables
    assert (uses[0] is uses[1]) == (share == "all")


def test_without_an_embedding_rank_only_linear_layers_get_adapters() -> None:
    for lora in (Lora(rank=2), Lora(rank=2, embedding_rank=0)):
        model = adapted_model(share="none", lora=lora)
        found = list(adapters(model))
        assert found and all(isinstance(layer, LoraLinear) for layer in found)
        assert type(model.get_submodule("decoder.output")) is nn.Linear


def test_embeddings_alone() -> None:
    model = adapted_model(lora=Lora(match=[], embedding_rank=4))
    assert {type(layer) for layer in adapters(model)} == {LoraEmbedding, LoraOutput}
    with pytest.raises(ConfigError, match="no linear layer of its own that is wider than the rank, 64"):
        add_adapters(small_model(), Lora(rank=64, embedding_rank=64))


def test_biases_and_narrow_tables_get_no_adapter() -> None:
    model = nn.ModuleDict({"output": nn.Linear(16, 40), "inner": nn.Linear(16, 16), "few": nn.Embedding(3, 16)})
    add_adapters(model, BOTH)
    layer = model["output"]
    assert isinstance(layer, LoraOutput) and type(model["few"]) is nn.Embedding
    x = torch.randn(2, 16)
    nn.init.normal_(layer.lora_b)
    assert torch.allclose(layer(x), x @ layer.weight.T + layer.bias, atol=1e-6)
    assert layer.plain(nn.Parameter(layer.weight)).bias is layer.bias


def test_sums_over_rows_read_the_adapted_table() -> None:
    """A memory network never calls its tables: it reads their weights."""
    encoder = MemoryEncoder(20, dim=8, hops=2, memory=5, tying="adjacent", position=True, temporal=True, empty=0.0).double()
    add_adapters(encoder, Lora(match=[], embedding_rank=2))
    for layer in adapters(encoder):
        nn.init.normal_(layer.lora_b)
    before = encoder(BATCH.source).memory
    merge_adapters(encoder)
    assert torch.allclose(before, encoder(BATCH.source).memory, atol=1e-10)


@torch.no_grad()
def test_merged_adapters_are_rounded_like_any_weights() -> None:
    model = adapted_model().float()
    hidden = torch.randn(4, 16)
    before = model.decoder.logits(hidden)
    merge_adapters(model)
    after = in_int8(model).decoder.logits(hidden)
    assert (before - after).abs().max() < 0.05 * before.abs().max()


def test_a_language_model_and_a_classifier_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a red sun, a blue sea.\n" * 60)
    (tmp_path / "labels.tsv").write_text("red sun\tday\nblue sea\tnight\n" * 20)
    common = {"model.dim": 16, "model.heads": 2, "model.feedforward": 32, "model.decoder_layers": 1}
    short = {"train.steps": 3, "train.batch_tokens": 64, "train.validate_every": 0, "train.device": "cpu", "train.threads": 1}
    lora = {**short, "train.tensorboard": False, "model.lora": {"rank": 4}}
    text = {"task.segment": 16, "task.memory": 16, "data.tokenizer": {"kind": "characters", "byte_fallback": False}}
    weft.train("lm-tiny", out=tmp_path / "base", data=str(tmp_path / "text.txt"), set={**common, **text, **short})
    weft.train(start=tmp_path / "base", out=tmp_path / "tuned", set=lora)
    saved = read_tensors(tmp_path / "tuned" / "model.safetensors")
    assert all(name.endswith((".lora_a", ".lora_b")) for name in saved)
    assert "decoder.embedding.table.lora_b" in saved
    assert weft.load_generator(tmp_path / "tuned", device="cpu").generate("a r", tokens=5)
    labels = str(tmp_path / "labels.tsv")
    weft.train(
        "classifier-bytes", start=tmp_path / "base", out=tmp_path / "labels", data=labels, set={**lora, "task.pooling": "mean"}
    )
    saved = read_tensors(tmp_path / "labels" / "model.safetensors")
    assert "encoder.decoder.embedding.table.lora_b" in saved and "output.weight" in saved
    assert "encoder.decoder.embedding.table.weight" not in saved
    assert weft.load(tmp_path / "labels", device="cpu").translate("red sun").text in ("day", "night")
