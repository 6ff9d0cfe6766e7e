"""Shallow fusion: the scores of a search are those of both models, added token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.helpers import tiny
from weft.data.batch import BOS, EOS, Source
from weft.errors import RunError
from weft.runs.translator import Translator, load, load_generator

SOURCES = ["a b c", "d e", "b", "c a b d e"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and a language model over its vocabulary, both hardly trained."""
    folder = tmp_path_factory.mktemp("fusion")
    settings = {
        **tiny.SETTINGS,
        "train.steps": 1,
        "data.tokenizer": "characters",
        "data.vocabulary": 300,
        "train.schedule": "constant",
    }
    weft.train("transformer-tiny", data=tiny.generated("reverse", 40), out=folder / "model", set=settings)
    (folder / "text").write_text("a b c d\ne f g\n" * 60)
    small = {"model.dim": 32, "model.heads": 2, "model.feedforward": 32, "model.decoder_layers": 1, "task.segment": 16}
    plain = {"train.steps": 3, "train.batch_tokens": 64, "train.device": "cpu", "train.threads": 1, "train.tensorboard": False}
    sets = {**small, **plain, "data.tokenizer_of": str(folder / "model"), "train.schedule": "constant"}
    weft.train("lm-tiny", data=str(folder / "text"), out=folder / "lm", set=sets)
    return folder / "model", folder / "lm"


def fused(translator: Translator, run: Path, weight: float, **options: Any) -> list[Any]:
    fusion = {"kind": "shallow", "run": str(run), "weight": weight}
    return translator.translate(SOURCES, beam=3, length_penalty=0.0, fusion=fusion, max_length=12, **options)


def test_scores_are_those_of_both_models(runs: tuple[Path, Path]) -> None:
    translator, language = load(runs[0], device="cpu"), load_generator(runs[1], device="cpu")
    assert language.task.vocabularies() == translator.task.vocabularies()[-1:]
    line_end = translator.target.encode("\n")[-1]
    for source, found in zip(SOURCES, fused(translator, runs[1], 0.7), strict=True):
        given, written = torch.tensor([[*translator.source.encode(source), EOS]]), found.ids
        with torch.inference_mode():
            hidden = translator.model(Source(given), torch.tensor([[BOS, *written[:-1]]])).hidden  # type: ignore[operator]
            logp = translator.model.decoder.logits(hidden).log_softmax(-1)[0]  # type: ignore[union-attr,operator]
            read = language.model(torch.tensor([[line_end, *written[:-1]]])).hidden
            spoken = language.model.decoder.logits(read).log_softmax(-1)[0]  # type: ignore[union-attr,operator]
        ends = [line_end if token == EOS else token for token in written]
        both = sum(logp[t, token] + 0.7 * spoken[t, end] for t, (token, end) in enumerate(zip(written, ends, strict=True)))
        assert found.score == pytest.approx(float(both), abs=1e-4)


def test_weight_zero_changes_nothing_and_another_weight_does(runs: tuple[Path, Path]) -> None:
    translator = load(runs[0], device="cpu")
    plain = translator.translate(SOURCES, beam=3, length_penalty=0.0, max_length=12)
    same, other = fused(translator, runs[1], 0.0), fused(translator, runs[1], 5.0)
    assert [each.text for each in same] == [each.text for each in plain]
    assert [each.score for each in same] == pytest.approx([each.score for each in plain], abs=1e-4)
    assert [each.text for each in other] != [each.text for each in plain]
    alone = [fused(load(runs[0], device="cpu"), runs[1], 5.0)[0].text, other[0].text]
    assert alone[0] == alone[1]


def test_another_vocabulary_is_refused(runs: tuple[Path, Path], reverse_run: Path) -> None:
    with pytest.raises(RunError, match=r"decode.fusion.run: .*data.tokenizer_of"):
        fused(load(reverse_run, device="cpu"), runs[1], 0.5)
    with pytest.raises(RunError, match="is not language_model"):
        fused(load(runs[0], device="cpu"), runs[0], 0.5)
