"""Runs that an earlier version trained: they load, say the same, and training goes on with the same numbers.

`fixtures/old_runs` holds one small run of each family, written by weft 0.1.0 before models were composed of parts, with the
texts and scores it gave (`expected.json`) and its weights five steps later (`resumed.safetensors`).
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import weft
from weft.runs.weight_files import read_tensors
from weft.training import checkpoint

RUNS = Path(__file__).parent / "fixtures" / "old_runs"
EXPECTED: dict[str, Any] = json.loads((RUNS / "expected.json").read_text())
LINES = ["k a b", "c c a", "e f g a", "b", "d a c b", "a b c d e f g"]
TEXTS = ["red green blue round", "square red red large", "small small red small"]
FAMILIES = ["transformer", "rnn", "convs2s", "bytenet", "pointer"]


@pytest.mark.parametrize("family", FAMILIES)
def test_old_runs_translate_as_they_did(family: str) -> None:
    found = weft.load(RUNS / family, device="cpu").translate(LINES, beam=3)
    assert [each.text for each in found] == [text for text, _ in EXPECTED[family]]
    assert [each.score for each in found] == pytest.approx([score for _, score in EXPECTED[family]], abs=2e-3)


def test_an_old_classifier_labels_as_it_did() -> None:
    found = weft.load(RUNS / "classifier", device="cpu").translate(TEXTS)
    assert [each.text for each in found] == [text for text, _ in EXPECTED["classifier"]]


def test_an_old_language_model_goes_on_as_it_did() -> None:
    model = weft.load_generator(RUNS / "language_model", device="cpu")
    found = [each.text for prompt in ("red gr", "squ") for each in model.generate(prompt, tokens=20, beam=1)]
    assert found == [text for text, _ in EXPECTED["language_model"]]


@pytest.mark.parametrize("family", FAMILIES)
def test_old_runs_resume(family: str, tmp_path: Path) -> None:
    run = tmp_path / family
    shutil.copytree(RUNS / family, run)
    weft.train(out=run, resume=True, set={"train.steps": 405})
    resumed = read_tensors(checkpoint.folder_of(run, 405) / "model.safetensors")
    expected = read_tensors(run / "resumed.safetensors")
    assert resumed.keys() == expected.keys()
    torch.testing.assert_close(resumed, expected, rtol=1e-4, atol=1e-5)
    before = load_file(RUNS / family / "model.safetensors")
    assert any(not torch.equal(old, new) for old, new in zip(before.values(), expected.values(), strict=True))
