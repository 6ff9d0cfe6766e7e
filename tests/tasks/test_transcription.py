"""Transcription of tones: training, resuming, decoding by attention and CTC, and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft as library
from tests.helpers import tiny, tones
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.evaluation.metrics import score
from weft.models.base import Sizes
from weft.models.frontends.base import FrontendSite, PyramidFrontend
from weft.runs.weight_files import read_tensors
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models
from weft.tasks.transcription.metrics import CharacterErrorRate, WordErrorRate

Train = Callable[..., Any]

SETTINGS: dict[str, Any] = {
    "task": {"kind": "transcription", "mels": 12, "label_smoothing": 0.0},
    "data.tokenizer": "words",
    "data.vocabulary": 50,
    "data.max_length": 400,
    "train.device": "cpu",
    "train.threads": 1,
    "train.steps": 70,
    "train.precision": "float32",
    "train.batch_tokens": 1500,
    "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 10},
    "train.validate_every": 0,
    "train.save_every": 1000,
    "train.tensorboard": False,
    "decode.beam": 1,
    "model": {
        "kind": "composed",
        "front": {"kind": "frames", "convolutions": 1, "channels": 24},
        "encoder": {"kind": "rnn", "dim": 32, "dropout": 0.0},
        "decoder": {"kind": "rnn", "dim": 32, "attention": {"kind": "location_aware", "width": 5}, "dropout": 0.0},
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tones")
    return tones.recordings(folder / "train", 160), tones.recordings(folder / "valid", 30, seed=2)


def train(run: Path, data: tuple[Path, Path], **settings: Any) -> Any:
    sets = {**SETTINGS, **{key.replace("__", "."): value for key, value in settings.items()}}
    return library.train("transformer-tiny", data=str(data[0]), valid=str(data[1]), out=run, set=sets)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data: tuple[Path, Path]) -> Path:
    """A model trained by attention and CTC, which has learnt the tones."""
    folder = tmp_path_factory.mktemp("run") / "joint"
    result = train(folder, data, task__ctc_weight=0.5, train__steps=140)
    assert result.scores["wer"] < 10
    return folder


def test_ctc_alone_learns_the_tones(tmp_path: Path, data: tuple[Path, Path]) -> None:
    """The best model is the one with the fewest word errors."""
    result = train(tmp_path / "run", data, task__ctc_weight=1, train__validate_every=35, train__best_by="wer")
    assert result.scores["wer"] < 10
    assert "decoder" not in " ".join(read_tensors(tmp_path / "run" / "model.safetensors"))


@pytest.mark.parametrize("weight", [0, 0.5, 1])
@pytest.mark.parametrize("beam", [1, 3])
def test_texts_do_not_depend_on_their_batch(run: Path, data: tuple[Path, Path], weight: float, beam: int) -> None:
    trained = library.load(run, device="cpu")
    trained.task.decode_weight = weight  # type: ignore[attr-defined]
    names = [str(data[1].parent / "wav" / f"{number}.wav") for number in range(6)]
    together = trained.translate(names, beam=beam)
    alone = [trained.translate(name, beam=beam) for name in names]
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.score for each in together] == pytest.approx([each.score for each in alone], abs=1e-3)


def test_both_together_rank_the_texts_of_both(run: Path, data: tuple[Path, Path]) -> None:
    trained = library.load(run, device="cpu")
    name = str(data[1].parent / "wav" / "0.wav")
    found = {}
    for weight in (0, 0.5, 1):
        trained.task.decode_weight = weight  # type: ignore[attr-defined]
        best = trained.translate(name, beam=4, n_best=4)
        found[weight] = [best.text, *(each.text for each in best.alternatives)]
    assert set(found[0.5]) <= {*found[0], *found[1]}
    with pytest.raises(ConfigError, match="cannot search the outputs of CTC"):
        trained.translate(name, search="sample")
    with pytest.raises(ConfigError, match=r"task\.decode_ctc: 0\.5 needs a model that was trained by attention and CTC"):
        library.load(run, device="cpu", set=["task.ctc_weight=1", "task.decode_ctc=0.5"])


def test_the_command_line_reads_files_and_lists(
    weft: tiny.Shell, run: Path, data: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tones.write_wav(tmp_path / "a.wav", tones.sing(["low", "high", "low"], np.random.default_rng(5)))
    tones.write_wav(tmp_path / "b.wav", tones.sing(["low", "high", "low"], np.random.default_rng(5), 16000), 16000)
    assert weft("predict", str(run), "a.wav").strip() == "low high low"
    assert weft("predict", str(run), "b.wav").strip() == "low high low", "it has another rate"
    (tmp_path / "list.txt").write_text("a.wav\nb.wav\n")
    assert weft("predict", str(run), "list.txt", "--json").count("low high low") == 2
    scores = json.loads(weft("evaluate", str(run), "--data", str(data[1]), "--json"))
    assert scores["metrics"].keys() == {"WER", "CER", "exact"}
    (tmp_path / "bad.wav").write_text("no sound")
    weft.fails("predict", str(run), "bad.wav", says=["bad.wav: this is not a wav file"])
    weft.fails("predict", str(run), "c.wav", says=["c.wav: there is no such file"])
    (tmp_path / "bad.tsv").write_text("a.wav\tlow\nc.wav\thigh\n")
    weft.fails("train", str(run / "config.yaml"), "--data", "bad.tsv", "--out", "new", says=["bad.tsv, row 2:", "c.wav"])
    with pytest.raises(ConfigError, match="a server does not accept"):
        Models([ModelLocation((str(run),))], device="cpu")


def test_a_model_of_text_refuses_sound(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    wav = tones.write_wav(tmp_path / "a.wav", np.zeros(100))
    weft.fails("predict", str(reverse_run), str(wav), says=["a.wav, line 1", "not valid UTF-8"])


def plain_distance(ours: list[str], theirs: list[str]) -> int:
    """The definition, by recursion."""
    if not ours or not theirs:
        return len(ours) + len(theirs)
    replaced = plain_distance(ours[1:], theirs[1:]) + (ours[0] != theirs[0])
    return min(replaced, plain_distance(ours[1:], theirs) + 1, plain_distance(ours, theirs[1:]) + 1)


def test_error_rates_are_edits_per_word_and_character() -> None:
    draw = np.random.default_rng(3)
    texts = [[" ".join(draw.choice(list("abc"), draw.integers(0, 5))) for _ in range(20)] for _ in range(2)]
    found = score(*texts, [WordErrorRate(), CharacterErrorRate()])
    words = [[text.split() for text in side] for side in texts]
    wrong = sum(plain_distance(ours, theirs) for ours, theirs in zip(*words, strict=True))
    assert found["WER"].value == pytest.approx(100 * wrong / sum(map(len, words[1])))
    assert not found["WER"].higher_is_better
    assert score(["ab cd"], ["ab c"], [CharacterErrorRate()])["CER"].value == 25
    assert score(["a a a"], ["b"], [WordErrorRate()])["WER"].value == 300
    assert score([""], [""], [WordErrorRate()])["WER"].value == 0


def test_a_pyramid_reads_every_row_as_if_alone() -> None:
    front = PyramidFrontend(FrontendSite(Sizes(6, reads="frames"), 8), layers=2, dim=10).eval()
    layout = Layout.padded([13, 6, 1])
    x = torch.randn(3, 13, 6, generator=torch.Generator().manual_seed(1))
    found, after = front(Source(x, layout))
    assert after is not None
    assert after.counts == (4, 2, 1)
    for row, (count, short) in enumerate(zip(layout.counts, after.counts, strict=True)):
        alone, _ = front(Source(x[row : row + 1, :count]))
        torch.testing.assert_close(found[row, :short], alone[0])
