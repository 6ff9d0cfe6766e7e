"""Activations that are computed again give the gradients of stored ones, bit for bit, and take less memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers import tiny
from weft.config.sections import load_config
from weft.data.batch import Source
from weft.models.base import Model
from weft.runs.weight_files import read_tensors
from weft.training.activation_checkpointing import checkpoint_layers
from weft.training.prepare_run import untrained_model

SIZES = ["data.vocabulary=50", "data.tokenizer=words", "model.dim=32", "model.heads=4", "model.feedforward=64"]
LAYERS = ["model.encoder_layers=2", "model.decoder_layers=2", "model.dropout=0.2"]


def model_of(tmp_path: Path, recipe: str, *sets: str) -> Model:
    model = untrained_model(load_config(recipe, [*SIZES, *sets]), tmp_path)[2].train()
    assert isinstance(model, Model)
    return model


def backward(model: Model) -> tuple[int, list[Tensor]]:
    """The bytes that the forward pass stores, and the gradients."""
    stored: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        stored[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(3)
    source, target = torch.randint(4, 50, (3, 19)), torch.randint(4, 50, (3, 17))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model.decoder.logits(model(Source(source), target).hidden).logsumexp(-1).sum()
    loss.backward()
    return sum(stored.values()), [weight.grad for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize(
    "sets",
    [
        [],
        ["model.norm=post"],
        ["model.encoder_self=lsh", "model.decoder_self=routing"],
        ["model.encoder_self=linear", "model.decoder_self=performer", "model.cross=linear"],
        ["model.encoder_self=recurrent", "model.decoder_self=convolution", "model.cross=location_aware"],
        ["model.cross=monotonic"],
        ["model.cross=hard"],
    ],
    ids=lambda sets: " ".join(sets) or "default",
)
def test_gradients_are_equal(tmp_path: Path, sets: list[str]) -> None:
    plain, again = (model_of(tmp_path, "transformer-tiny", *LAYERS, *sets) for _ in range(2))
    checkpoint_layers(again)
    (most, wanted), (less, found) = backward(plain), backward(again)
    assert len(found) == len(wanted) > 20
    for gradient, expected in zip(found, wanted):
        assert torch.equal(gradient, expected)
    assert less < 0.6 * most


def test_runs_end_with_the_same_weights(tmp_path: Path) -> None:
    settings = {**tiny.SETTINGS, "train.steps": 6, "train.save_every": 6, "model.dropout": 0.2}
    for name in ("false", "true"):
        tiny.train(tmp_path / name, settings={**settings, "train.recompute": name == "true"})
    plain, again = (read_tensors(tmp_path / name / "model.safetensors") for name in ("false", "true"))
    assert all(torch.equal(tensor, again[name]) for name, tensor in plain.items())


def test_language_models_too(weft: tiny.Shell, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    common = (
        "train",
        "lm-tiny",
        "--data",
        tmp_path / "text.txt",
        "--set",
        "train.steps=4",
        "train.device=cpu",
        "train.threads=1",
    )
    small = ("model.decoder_layers=2", "model.dim=32", "model.heads=2", "train.validate_every=0", "model.dropout=0.1")
    for name in ("false", "true"):
        weft(*common, *small, f"train.recompute={name}", "--out", tmp_path / name)
    plain, again = (read_tensors(tmp_path / name / "model.safetensors") for name in ("false", "true"))
    assert all(torch.equal(tensor, again[name]) for name, tensor in plain.items())


def test_models_without_layers_are_refused(weft: tiny.Shell, tmp_path: Path) -> None:
    data = ("--data", tiny.generated("reverse", 20), "--out", tmp_path / "x")
    weft.fails(
        "train", "rnn-luong", *data, "--set", "train.recompute=true", says=["train.recompute", "no layers of a Transformer"]
    )
    reversible = ("train.recompute=true", "model.reversible=true")
    weft.fails("train", "transformer-tiny", *data, "--set", *reversible, says=["train.recompute", "reversible"])
