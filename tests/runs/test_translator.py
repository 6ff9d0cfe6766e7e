"""`weft.load`: runs at work, ensembles, and what happens with runs and options that are not right."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import weft
from tests.helpers import tiny
from weft.errors import ConfigError, DeviceError, RunError, WeftError


def spoil(run: Path, copy: Path) -> Path:
    """A copy of a run that may be damaged."""
    return Path(shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints")))


def test_one_text_gives_one_translation_and_several_a_list(reverse_run: Path) -> None:
    translator = weft.load(reverse_run)
    one = translator.translate("a b c")
    assert one.text == "c b a"
    assert one.score < 0
    assert one.tokens[:3] == ["c", "b", "a"]
    assert [each.text for each in translator.translate(("a b c",))] == [one.text]
    assert translator.translate([]) == []


def test_models_tasks_and_outputs_are_readable_at_a_prompt(reverse_run: Path) -> None:
    translator = weft.load(reverse_run, device="cpu")
    assert re.fullmatch(
        rf"<Translator {reverse_run}: translation, transformer with [\d,]+ parameters on cpu>", repr(translator)
    )
    assert repr(translator.task) == f"<TranslationTask: translation, {reverse_run}>"
    assert re.fullmatch(r"<TranslationPredictor: \w+ on cpu, beam search>", repr(translator.predictor()))
    one = translator.translate("a b c", attention=True)
    assert repr(one) == f"Translation(text='c b a', score={one.score!r}, source='a b c')"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beem": 3}, r"decode\.beem: .*beam"),
        ({"beam": 0}, r"decode\.beam: .*0"),
        ({"beam": "many"}, r"decode\.beam"),
        ({"into": "de"}, r"decode\.into: a run of the task translation translates in one direction"),
        ({"sample": True, "top_p": 1.5}, r"decode\.top_p: .*1.5"),
        ({"top_p": 0.5}, r"decode\.top_p: the search beam does not use it; set decode.search to sample"),
        ({"precision": "fp8"}, r"decode\.precision: .*float32"),
        ({"sample": True, "max_lenght": 9, "seed": -1}, r"max_length(.|\n)*seed|seed(.|\n)*max_length"),
    ],
)
def test_options_are_checked(reverse_run: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        weft.load(reverse_run).translate("a", **options)


def test_prefixes_have_to_fit_the_texts(reverse_run: Path) -> None:
    translator = weft.load(reverse_run)
    with pytest.raises(ConfigError, match="2 texts and 1 prefixes"):
        translator.translate(["a", "b"], prefix=["a"])
    with pytest.raises(ConfigError, match="a list with one prefix for each"):
        translator.translate(["a", "b"], prefix="a")
    with pytest.raises(ConfigError, match="one prefix, not a list"):
        translator.translate("a", prefix=["a"])  # type: ignore[call-overload]


def test_two_runs_form_an_ensemble(reverse_run: Path, other_run: Path) -> None:
    good, bad, both = weft.load(reverse_run), weft.load(other_run), weft.load([reverse_run, other_run])
    lines = [" ".join("abcdefg"[start:]) for start in range(6)]
    for beam in (1, 3):
        texts = [each.text for each in both.translate(lines, beam=beam)]
        assert texts == [each.text for each in good.translate(lines, beam=beam)]
    scores = [system.translate("a b c", beam=1).score for system in (good, bad, both)]
    assert min(scores[:2]) < scores[2] < max(scores[:2])
    twice = weft.load([reverse_run, reverse_run]).translate("a b c", beam=2)
    assert twice.score == pytest.approx(good.translate("a b c", beam=2).score, abs=1e-5)


def test_an_ensemble_shows_the_attention_of_each(reverse_run: Path, other_run: Path) -> None:
    found = weft.load([reverse_run, other_run]).translate("a b c", attention=True)
    assert len(found.attention) == 2 * len(weft.load(reverse_run).translate("a b c", attention=True).attention)


def test_runs_with_other_tokenizers_form_no_ensemble(reverse_run: Path, tmp_path: Path) -> None:
    tiny.train(
        tmp_path / "sums", "addition", {"train.steps": 2, "data.tokenizer": "characters", "data.vocabulary": 300}, valid=()
    )
    with pytest.raises(RunError, match="sums: its tokenizer differs from that of"):
        weft.load([reverse_run, tmp_path / "sums"])


def test_no_run_and_no_model(tmp_path: Path, reverse_run: Path) -> None:
    with pytest.raises(RunError, match="there is no such run folder"):
        weft.load(tmp_path / "missing")
    with pytest.raises(RunError, match=r"it has no config\.yaml"):
        weft.load(tmp_path)
    with pytest.raises(RunError, match="at least one folder"):
        weft.load([])
    run = spoil(reverse_run, tmp_path / "run")
    (run / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"there is no model\.safetensors yet"):
        weft.load(run)


def test_an_unknown_device_is_said(reverse_run: Path) -> None:
    with pytest.raises(DeviceError, match="there is no device 'tpu'; this machine has cpu"):
        weft.load(reverse_run, device="tpu")


@pytest.mark.parametrize("keep", [0, 7, 1000, -1])
def test_a_model_cut_short_is_said(reverse_run: Path, tmp_path: Path, keep: int) -> None:
    run = spoil(reverse_run, tmp_path / "run")
    whole = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(whole[:keep])
    with pytest.raises(RunError, match=r"model\.safetensors: the safetensors file is cut short or damaged"):
        weft.load(run)


def test_a_model_of_another_architecture_is_said(reverse_run: Path, tmp_path: Path) -> None:
    run = spoil(reverse_run, tmp_path / "run")
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("feedforward: 64", "feedforward: 128"))
    with pytest.raises(RunError, match=r"different architecture: .*has shape \[64, 32\], not \[128, 32\]"):
        weft.load(run)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b'{"words": ["a"', b"\xff\xfe\x00", b'{"words": 3}'])
def test_a_damaged_tokenizer_is_said(reverse_run: Path, tmp_path: Path, content: bytes) -> None:
    run = spoil(reverse_run, tmp_path / "run")
    (run / "tokenizer.json").write_bytes(content)
    with pytest.raises(WeftError, match=r"tokenizer\.json"):
        weft.load(run)


@pytest.mark.parametrize("content", ["", "data: [", "model: 3\n", "nonsense: 1\n", "data:\n  trian: []\n"])
def test_a_damaged_configuration_is_said(reverse_run: Path, tmp_path: Path, content: str) -> None:
    run = spoil(reverse_run, tmp_path / "run")
    (run / "config.yaml").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        weft.load(run)
