"""Contextual vectors of a frozen language model: their mix, and runs that read with one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.data.batch import Layout, Source
from weft.errors import ConfigError, RunError
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_encoder
from weft.runs.open_run import open_run
from weft.runs.packed_run import SUFFIX, pack_run
from weft.runs.translator import load_trained
from weft_contract.mechanism_entries import perturbed

QUIET: dict[str, Any] = {
    "train.device": "cpu",
    "train.threads": 1,
    "train.tensorboard": False,
    "train.validate_every": 0,
    "train.schedule": {"kind": "constant", "rate": 1e-2},
}
LM: dict[str, Any] = {"kind": "language_model", "dim": 8, "heads": 2, "feedforward": 12, "decoder_layers": 2, "dropout": 0.5}


@torch.no_grad()
@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_mix_is_its_equation(layer_norm: bool) -> None:
    """Peters et al. 2018, equation 1: ELMo = γ Σ_j s_j h_j over L + 1 layers, beside the embedding."""
    front = {"kind": "contextual", "run": "x", "language_model": LM, "layer_norm": layer_norm}
    spec = {"kind": "composed", "front": front, "encoder": {"kind": "identity", "dim": 11}}
    part = perturbed(build_encoder(spec, Sizes(9, 9))).front
    tokens, layout = torch.randint(3, 9, (2, 6)), Layout.padded([6, 3])
    found, _ = part(Source(tokens, layout))
    for row, length in enumerate([6, 3]):
        decoder = part.language_model.decoder
        x = decoder.embedding(tokens[row : row + 1, :length], torch.arange(length)[None])
        layers = [x]
        for layer in decoder.layers:
            layers.append(layer.read(layers[-1], layer.mixer.init_state(rows=1), None, {})[0])
        layers[-1] = decoder.norm(layers[-1])
        if layer_norm:
            layers = [(h - h.mean(-1, keepdim=True)) / (h.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() for h in layers]
        share = part.mixture.exp() / part.mixture.exp().sum()
        mix = part.gamma * sum(share[place] * layers[place][0] for place in range(3))
        own = part.table.weight[tokens[row, :length]] * 11**0.5
        torch.testing.assert_close(found[row, :length], torch.cat([own, mix], -1))


def test_the_language_model_neither_learns_nor_drops() -> None:
    front = {"kind": "contextual", "run": "x", "language_model": LM, "dropout": 0.0}
    spec = {"kind": "composed", "front": front, "encoder": {"kind": "identity", "dim": 11}}
    part = build_encoder(spec, Sizes(9, 9)).train().front
    source = Source(torch.randint(3, 9, (2, 6)))
    first, again = (part(source)[0] for _ in range(2))
    assert torch.equal(first, again)
    first.square().sum().backward()
    learns = {name for name, value in part.named_parameters() if value.grad is not None}
    assert learns == {"table.weight", "mixture", "gamma"}


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm")
    (folder / "text.txt").write_text("the red dog runs\na blue cat sits\n" * 40)
    model = {**LM, "dropout": 0.0}
    sizes = {
        "data.tokenizer": {"kind": "words", "line_ends": True},
        "train.steps": 3,
        "task.segment": 8,
        "train.batch_tokens": 64,
    }
    carry = {"task.carry": "nothing", "task.evaluation_memory": None, "model.position": "sinusoidal"}
    weft.train("lm-tiny", data=str(folder / "text.txt"), out=folder / "run", set={"model": model, **QUIET, **sizes, **carry})
    return folder / "run"


def settings(run: Path | str, **more: Any) -> dict[str, Any]:
    front = {"kind": "contextual", "run": str(run), "dropout": 0.1}
    model = {"kind": "composed", "front": front, "encoder": {"kind": "rnn", "dim": 8, "embedding": 14, "dropout": 0.0}}
    return {"model": model, "train.steps": 25, "train.batch_tokens": 128, "train.ema": 0.0, **QUIET, **more}


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    file = tmp_path / "labels.tsv"
    file.write_text(
        "".join(f"the {colour} {animal}\t{colour}\n" for colour in ("red", "blue") for animal in ("dog", "cat")) * 8
    )
    return file


def test_a_run_reads_with_the_language_model_and_keeps_it(language_model: Path, labelled: Path, tmp_path: Path) -> None:
    lm = tmp_path / "lm"
    shutil.copytree(language_model, lm)
    result = weft.train("classifier", data=str(labelled), valid=str(labelled), out=tmp_path / "run", set=settings(lm))
    theirs = open_run(lm).model.state_dict()
    shutil.rmtree(lm)
    trained = open_run(tmp_path / "run")
    mine = trained.model.encoder.front.language_model.state_dict()
    assert all(torch.equal(mine[name], value) for name, value in theirs.items())
    assert trained.config.data.tokenizer["kind"] == "words" and trained.config.data.tokenizer["line_ends"]
    assert trained.sizes.source == len(mine["decoder.embedding.table.weight"])
    assert result.scores["accuracy"] == 100
    assert [each.text for each in load_trained(tmp_path / "run", device="cpu").stream(["a blue dog"])] == ["blue"]
    packed_file = (tmp_path / "packed").with_suffix(SUFFIX)
    pack_run(tmp_path / "run", packed_file)
    packed = open_run(packed_file)
    assert packed.config.model["front"]["run"] is None
    assert torch.equal(packed.model.encoder.front.gamma, trained.model.encoder.front.gamma)


def test_what_cannot_be_read_with_is_refused(language_model: Path, labelled: Path, tmp_path: Path) -> None:
    def begin(**changes: Any) -> None:
        weft.train("classifier", data=str(labelled), out=tmp_path / "bad", set={**settings(language_model), **changes})

    with pytest.raises(RunError, match="there is no such run folder"):
        begin(**{"model.front.run": str(tmp_path / "nowhere")})
    with pytest.raises(ConfigError, match=r"leaves nothing for embeddings; set the encoder's dim .* to more than 8"):
        begin(**{"model.encoder.embedding": 8})
    with pytest.raises(ConfigError, match="reads the tokens of its own run; remove this setting"):
        begin(**{"data.tokenizer_of": str(tmp_path)})
    with pytest.raises(ConfigError, match="contextual needs a trained language model; name the folder of its run"):
        begin(**{"model.front.run": None})
    weft.train("classifier", data=str(labelled), out=tmp_path / "labels", set={**QUIET, "train.steps": 1})
    with pytest.raises(ConfigError, match="is a composed, not a language model; name the run of one"):
        begin(**{"model.front.run": str(tmp_path / "labels")})
