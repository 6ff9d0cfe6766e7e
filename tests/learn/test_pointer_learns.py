"""Copying is learned in seconds, through the same calls that a user makes: unseen words come out as they went in."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.helpers import tiny
from weft.errors import RunError
from weft.explain.attention_heatmap import cross_attention
from weft.runs.translator import Translator

SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("model.")},
    "data.vocabulary": 40,
    "train.steps": 150,
    "train.batch_tokens": 512,
    "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 20},
}
RNN = {"kind": "rnn", "dim": 32, "dropout": 0.0}


def word(rng: random.Random, letters: str) -> str:
    return "".join(rng.choices(letters, k=5))


def lines(rng: random.Random, words: list[str], count: int) -> list[list[str]]:
    return [rng.choices(words, k=rng.randint(1, 6)) for _ in range(count)]


def backwards(text: str) -> str:
    return " ".join(reversed(text.split()))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Words to be said backwards, most of them too rare for the vocabulary."""
    rng = random.Random(1)
    words = [word(rng, "abcdefgh") for _ in range(400)]
    path = tmp_path_factory.mktemp("pairs") / "train.tsv"
    path.write_text("".join(f"{' '.join(line)}\t{' '.join(reversed(line))}\n" for line in lines(rng, words, 3000)))
    return str(path)


@pytest.fixture(scope="module")
def unseen() -> list[str]:
    """Lines of words that training never had, of letters that it never had."""
    rng = random.Random(2)
    return [" ".join(line) for line in lines(rng, [word(rng, "stuvwxyz") for _ in range(50)], 60)]


@pytest.fixture(scope="module")
def run(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pointer-generator that says words backwards."""
    out = tmp_path_factory.mktemp("runs") / "pointer"
    weft.train("pointer", data=data, out=out, set={**SETTINGS, "model.base": RNN})
    return out


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    return weft.load(run, device="cpu")


def test_a_pointer_generator_copies_unseen_words(translator: Translator, unseen: list[str]) -> None:
    found = translator.translate(unseen)
    assert sum(each.text == backwards(line) for each, line in zip(found, unseen, strict=True)) >= 54


def test_a_pointer_network_copies_unseen_words(data: str, unseen: list[str], tmp_path: Path) -> None:
    base = {**RNN, "style": "luong"}
    weft.train("pointer", data=data, out=tmp_path / "run", set={**SETTINGS, "model.base": base, "model.generate": False})
    found = weft.load(tmp_path / "run").translate(unseen, beam=3)
    assert sum(each.text == backwards(line) for each, line in zip(found, unseen, strict=True)) >= 54
    said = {word for each in found for other in (each, *each.alternatives) for word in other.text.split()}
    assert said <= {word for line in unseen for word in line.split()}


@pytest.mark.parametrize("options", [{"beam": 4, "n_best": 2}, {"sample": True, "temperature": 1.5}], ids=["beam", "sample"])
def test_a_text_does_not_depend_on_its_batch(translator: Translator, unseen: list[str], options: dict[str, Any]) -> None:
    alone = [translator.translate(line, **options) for line in unseen]
    for budget in (20, 10_000):
        for found, wanted in zip(translator.translate(unseen, batch_tokens=budget, **options), alone, strict=True):
            assert found.text == wanted.text and found.ids == wanted.ids
            assert found.score == pytest.approx(wanted.score, abs=1e-4)
            assert [each.text for each in found.alternatives] == [each.text for each in wanted.alternatives]


def test_prefixes_name_words_of_the_source(translator: Translator) -> None:
    found = translator.translate("zyx wvu tsr", prefix="tsr")
    assert found.text == "tsr wvu zyx"


def test_each_part_of_a_long_line_has_its_own_words(translator: Translator) -> None:
    """Cut into three, every part is translated by itself, and its unknown words are those it has."""
    found = translator.translate("zyx wvu tsr zyx uvw xyz", max_source=3)
    assert found.text == "wvu zyx zyx tsr xyz uvw"
    assert found.source_tokens == ["zyx", "wvu", "</s>", "tsr", "zyx", "</s>", "uvw", "xyz", "</s>"]


def test_pictures_show_the_words_themselves(translator: Translator) -> None:
    found = translator.translate("zyx wvu tsr", attention=True, beam=2)
    assert found.source_tokens == ["zyx", "wvu", "tsr", "</s>"]
    assert found.tokens == ["tsr", "wvu", "zyx", "</s>"]
    weights = cross_attention(found)
    assert weights.shape == (4, 4)
    assert np.argmax(weights[:3], 1).tolist() == [2, 1, 0]


def test_ensembles_of_runs_that_copy(run: Path, unseen: list[str], data: str, tmp_path: Path) -> None:
    alone, twice = (weft.load(runs).translate(unseen, beam=2) for runs in (run, [run, run]))
    assert [each.text for each in alone] == [each.text for each in twice]
    plain = {f"model.{key}": value for key, value in RNN.items() if key != "kind"}
    weft.train("rnn-bahdanau", data=data, out=tmp_path / "plain", set={**SETTINGS, **plain, "train.steps": 1})
    with pytest.raises(RunError, match="all copy"):
        weft.load([run, tmp_path / "plain"])


def test_without_a_pointer_unknown_words_stay_unknown(data: str, tmp_path: Path) -> None:
    plain = {f"model.{key}": value for key, value in RNN.items() if key != "kind"}
    weft.train("rnn-bahdanau", data=data, out=tmp_path / "run", set={**SETTINGS, **plain, "train.steps": 1})
    found = weft.load(tmp_path / "run").translate("zyx wvu")
    assert found.source_tokens == ["<unk>", "<unk>", "</s>"]
    assert not {"zyx", "wvu"} & set(found.text.split())


def test_a_run_is_scored(weft: tiny.Shell, run: Path, unseen: list[str], tmp_path: Path) -> None:
    pairs = tmp_path / "test.tsv"
    pairs.write_text("".join(f"{line}\t{backwards(line)}\n" for line in unseen))
    found = json.loads(weft("evaluate", run, "--data", pairs, "--json", "--device", "cpu"))
    assert found["metrics"]["exact"]["value"] >= 90
    assert weft("translate", run, "--device", "cpu", stdin="zyx wvu\n") == "wvu zyx\n"


def test_a_resumed_run_is_the_same_run(data: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, "model.base": RNN, "train.save_every": 3, "train.schedule": "constant"}
    weft.train("pointer", data=data, out=tmp_path / "whole", set={**settings, "train.steps": 6})
    weft.train("pointer", data=data, out=tmp_path / "parts", set={**settings, "train.steps": 3})
    weft.train(out=tmp_path / "parts", resume=True, set={"train.steps": 6})
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
