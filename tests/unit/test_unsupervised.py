"""Translation without translated text: its batches, its back-translations, and that it resumes exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from made_up import sentences, twin

import weft
from weft.batch import BOS, EOS, PAD
from weft.config.sections import load_config
from weft.errors import ConfigError, DataError
from weft.inference.two_languages import TwoLanguagePredictor
from weft.models.base import Model
from weft.runs.opening import build_task
from weft.runs.weights import read_tensors
from weft.tasks.bilingual import back_translate
from weft.tasks.unsupervised import UnsupervisedTask

SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("decode.")},
    "model.encoder_self": "full",
    "model.decoder_self": "full",
    "model.cross": "full",
    "data.hold_out": 4,
    "task.denoising_steps": 8,
    "task.dictionary_steps": 4,
    "train.steps": 6,
    "train.save_every": 3,
    "train.schedule": {"kind": "constant", "rate": 1e-3},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("texts")
    texts = {"en": sentences(300, seed=1), "xx": [twin(line) for line in sentences(320, seed=2)]}
    for language, lines in texts.items():
        (folder / language).write_text("".join(f"{line}\n" for line in lines))
    return [f"{language}={folder / language}" for language in texts]


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {**SETTINGS, "data.cache": str(folder / "cache"), **changes}


def prepared(files: list[str], folder: Path, **changes: Any) -> tuple[UnsupervisedTask, Model]:
    sets = [f"{key}={value}" for key, value in settings(folder, **changes).items() if not isinstance(value, dict)]
    config = load_config("unsupervised", sets).replaced({"data.train": files})
    folder.mkdir(exist_ok=True)
    task = build_task(config, folder)
    assert isinstance(task, UnsupervisedTask)
    torch.manual_seed(0)
    model = task.build(config.model, task.prepare())
    assert isinstance(model, Model)
    return task, model


def test_batches_hold_texts_noise_and_translations_word_by_word(files: list[str], tmp_path: Path) -> None:
    task, _ = prepared(files, tmp_path / "run")
    batch, _ = next(task.batches(weft.batch.Position()))
    english, other = task.two.first, task.two.second
    for row in range(len(batch.rows)):
        target = [token for token in batch.target[row].tolist() if token != PAD]
        labels = [token for token in batch.labels[row].tolist() if token != PAD]
        clean = [token for token in batch.clean.values[row].tolist() if token != PAD]
        assert target[0] == BOS and target[1] in (english, other) and target[1] != batch.other[row]
        assert labels == clean == [*target[2:], EOS]
        assert batch.labels[row, 0] == PAD
    assert (batch.source.values == task.marked.mark("blank")).any()


def test_noise_follows_from_the_position(files: list[str], tmp_path: Path) -> None:
    task, _ = prepared(files, tmp_path / "run")
    stream = task.batches(weft.batch.Position())
    _, second = next(stream)
    ahead, _ = next(stream)
    again, _ = next(task.batches(second))
    assert all(torch.equal(one, other) for one, other in zip(ahead.tensors(), again.tensors(), strict=True))


def test_back_translations_are_what_the_predictor_writes(files: list[str], tmp_path: Path) -> None:
    task, model = prepared(files, tmp_path / "run")
    batch, _ = next(task.batches(weft.batch.Position()))
    model.train()
    found = back_translate(model, batch, task.two, 64)
    assert model.training and not found.values.requires_grad
    model.eval()
    row = next(n for n, mark in enumerate(batch.other.tolist()) if mark == task.two.second)
    text = task.marked.decode([token for token in batch.clean.values[row].tolist() if token > EOS])
    written = task._translated(model, [text], "xx")[0]
    ids = [token for token in found.values[row].tolist() if token not in (PAD, EOS)]
    assert task.marked.decode(ids) == written


def test_denoising_fades_and_dictionaries_come_first(files: list[str], tmp_path: Path) -> None:
    task, model = prepared(files, tmp_path / "run")
    batch, _ = next(task.batches(weft.batch.Position()))
    weights = []
    for update in (1, 5, 9):
        losses = list(task.losses(model, batch, update))
        weights.append(len(losses))
        assert losses[-1].count == (batch.labels != PAD).sum()
    assert weights == [2, 2, 1]


def test_purity_counts_words_of_the_wrong_language(files: list[str], tmp_path: Path) -> None:
    task, _ = prepared(files, tmp_path / "run")
    line = "dog sees cat at house"
    assert task.purity(line.split(), 0) == 100
    assert task.purity(line.split(), 1) <= 20
    assert task.purity(twin(line).split(), 1) == 100


def test_a_resumed_run_is_equal_bit_by_bit_and_translates_both_ways(files: list[str], tmp_path: Path) -> None:
    changes = settings(tmp_path)
    weft.train("unsupervised", data=files, out=tmp_path / "whole", set=changes)
    weft.train("unsupervised", data=files, out=tmp_path / "halves", set={**changes, "train.steps": 3})
    weft.train(out=tmp_path / "halves", resume=True, set={"train.steps": 6})
    whole, halves = (
        read_tensors(tmp_path / run / "checkpoints/step-00000006/model.safetensors") for run in ("whole", "halves")
    )
    assert all(torch.equal(tensor, halves[name]) for name, tensor in whole.items())
    trained = weft.load(tmp_path / "whole", device="cpu")
    assert isinstance(trained.task, UnsupervisedTask)
    english, other = trained.task.two.first, trained.task.two.second
    for options, mark in (({}, other), ({"into": "en"}, english)):
        predictor = trained.predictor(**options)
        assert isinstance(predictor, TwoLanguagePredictor) and predictor.into == mark
    assert len(list(trained.stream(["dog sees cat", "ekil"], into="en"))) == 2
    with pytest.raises(ConfigError, match="between en and xx"):
        trained.predictor(into="de")


def test_parallel_data_is_refused(tmp_path: Path) -> None:
    lines = sentences(100, seed=1)
    texts = {"en": [" ".join([line] * (1 + n % 5)) for n, line in enumerate(lines)]}
    texts["xx"] = [" ".join(twin(line) for _ in range(1 + n % 5)) for n, line in enumerate(lines)]
    for language, those in texts.items():
        (tmp_path / language).write_text("".join(f"{line}\n" for line in those))
    files = [f"{language}={tmp_path / language}" for language in texts]
    with pytest.raises(DataError, match="line by line"):
        weft.train("unsupervised", data=files, out=tmp_path / "run", set=settings(tmp_path))
