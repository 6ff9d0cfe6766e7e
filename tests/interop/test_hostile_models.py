"""Damaged and hostile files: a sentence each, no traceback, nothing executed, nothing left behind."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.foreign_models import marian_folder, random_run
from weft.errors import RunError
from weft.interop.exporting import export_run
from weft.interop.importing import import_model

pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")


class Code:
    """A pickle that would run a command."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "model"
    marian_folder(folder)
    return folder


def settings(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def cut(name: str, size: int = 300) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


def absurd_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with open(folder / "pytorch_model.bin", "wb") as out:
        pickle.dump({"weights": Code(folder / "run")}, out)


def pickled_in_zip(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": torch.zeros(2), "weights": Code(folder / "run")}, folder / "pytorch_model.bin")


def other_shapes(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["model.encoder.layers.0.fc1.weight"] = torch.zeros(3, 32)
    save_file(tensors, folder / "model.safetensors")


def more_tensors(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.encoder.layernorm_embedding.weight": torch.zeros(32)}, folder / "model.safetensors")


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut weights": (cut("model.safetensors"), "cut short or damaged"),
    "absurd header": (absurd_header, "cut short or damaged"),
    "cut settings": (cut("config.json", 50), "not JSON"),
    "settings are a list": (lambda folder: (folder / "config.json").write_text("[]"), "JSON object"),
    "deep settings": (lambda folder: (folder / "config.json").write_text("[" * 100_000), "not JSON"),
    "no vocabulary": (lambda folder: (folder / "vocab.json").unlink(), "vocab.json is missing"),
    "double ids": (lambda folder: (folder / "vocab.json").write_text('{"</s>": 0, "<unk>": 0}'), "different numbers"),
    "no SentencePiece model": (lambda folder: (folder / "source.spm").unlink(), "source.spm is missing"),
    "damaged SentencePiece model": (lambda folder: (folder / "source.spm").write_bytes(b"\xff" * 99), "not a SentencePiece"),
    "pickle": (pickled, "which is never run"),
    "pickle in a zip": (pickled_in_zip, "which is never run"),
    "wrong shapes": (other_shapes, r"fc1\.weight has shape \[3, 32\], not \[48, 32\]"),
    "unknown tensor": (more_tensors, "layernorm_embedding.weight is unknown"),
    "absurd layers": (settings(encoder_layers=10**9), "encoder_layers"),
    "text for a number": (settings(d_model="32"), "d_model must be a whole number"),
    "absurd vocabulary": (settings(vocab_size=2**31 - 1, decoder_vocab_size=2**31 - 1), "vocab_size"),
    "other heads": (settings(encoder_attention_heads=5, decoder_attention_heads=5), "do not fit together"),
    "unequal heads": (settings(decoder_attention_heads=2), "encoder_attention_heads and decoder_attention_heads differ"),
    "other activation": (settings(activation_function="gelu_new"), "activation_function: gelu_new"),
    "normalised embeddings": (settings(normalize_embedding=True), "normalize_embedding"),
    "mBART": (settings(model_type="mbart"), "mBART normalises its embeddings"),
    "T5": (settings(model_type="t5"), "T5 has RMSNorm.*MADLAD"),
    "MoE": (settings(model_type="nllb-moe"), "mixture of experts"),
    "unknown": (settings(model_type="llama"), "architecture llama"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_folder_gets_a_sentence(kind: str, marian: Path, tmp_path: Path) -> None:
    import shutil

    folder, (harm, reason) = tmp_path / "model", HOSTILE[kind]
    shutil.copytree(marian, folder)
    harm(folder)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunError, match=reason) as caught:
        import_model(folder, tmp_path / "out")
    assert len(str(caught.value)) < 600
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "out"] == before
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def test_a_hostile_npz_gets_a_sentence(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", norm="post", position="tensor2tensor")
    export_run(run, "marian", tmp_path / "good")
    file = tmp_path / "good" / "model.npz"
    content = file.read_bytes()

    def refused(reason: str) -> None:
        with pytest.raises(RunError, match=reason):
            import_model(tmp_path / "good", tmp_path / "out")

    file.write_bytes(content[: len(content) // 2])
    refused("cut short or damaged")
    with open(file, "wb") as out:
        np.savez(out, allow_pickle=True, **{"special:model.yml": np.array([Code(tmp_path / "made")], object)})
    refused("damaged")
    assert not (tmp_path / "made").exists()
    np.savez(file, Wemb=np.zeros((3, 4), np.float32))
    refused("no model of Marian")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("Wemb.npy", b"\0" * (1 << 29))
    refused("far more than the file can")
    file.write_bytes(content)
    (tmp_path / "good" / "vocab.spm").unlink()
    refused("vocabulary is missing")
    with pytest.raises(RunError, match="no such file"):
        import_model(tmp_path / "nothing", tmp_path / "out")
