"""Synthesis of tones: training, the sound that comes out, dropout at test time, the command line, pages and the server."""

from __future__ import annotations

import base64
import io
import json
import re
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft as library
from tests.helpers import tiny, tones
from tests.helpers.serving import running
from weft.errors import ConfigError
from weft.explain.html_page import explain_page
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models
from weft.tasks.synthesis.griffin_lim import InvertibleLogMel, wav_content
from weft.tasks.transcription.log_mel import read_wav

SETTINGS: dict[str, Any] = {
    "task": {"kind": "synthesis", "mels": 24, "window": 0.03, "hop": 0.01, "test_dropout": True, "distance": "l2"},
    "data.tokenizer": "words",
    "data.vocabulary": 50,
    "data.max_length": 400,
    "train.device": "cpu",
    "train.threads": 1,
    "train.steps": 250,
    "train.precision": "float32",
    "train.batch_tokens": 1200,
    "train.schedule": {"kind": "cosine", "rate": 1e-2, "warmup": 10},
    "train.validate_every": 0,
    "train.save_every": 1000,
    "train.tensorboard": False,
    "train.best_by": "loss",
    "decode.max_length": 40,
    "model": {
        "kind": "composed",
        "encoder": {"kind": "rnn", "dim": 32, "dropout": 0.0},
        "decoder": {
            "kind": "rnn",
            "dim": 64,
            "embedding": 16,
            "attention": {"kind": "location_aware", "width": 5, "filters": 4, "hidden": 16},
            "bridge": "zeros",
            "dropout": 0.0,
        },
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Lists of recordings with their texts, read the other way round."""
    folder = tmp_path_factory.mktemp("tones")
    train, valid = (tones.recordings(folder / str(seed), count, seed, even=True) for seed, count in ((1, 300), (2, 20)))
    return f"{train}#2,1", f"{valid}#2,1"


def train(run: Path, data: tuple[str, str], **settings: Any) -> Any:
    sets = {**SETTINGS, **{key.replace("__", "."): value for key, value in settings.items()}}
    return library.train("transformer-tiny", data=data[0], valid=data[1], out=run, set=sets)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data: tuple[str, str]) -> Path:
    """A model that has learnt to sing the words."""
    folder = tmp_path_factory.mktemp("run") / "tones"
    scores = train(folder, data).scores
    assert scores["diagonal"] > 70
    assert scores["unended"] == 0
    assert scores["mcd"] < 9
    return folder


def heard(samples: np.ndarray, rate: int) -> list[str]:
    """The words of a sound by the frequency of each stretch that is loud; a word that is repeated counts once."""
    size = rate // 50
    places = range(0, len(samples) - size, size // 2)
    power = np.array([np.sqrt(np.mean(samples[at : at + size] ** 2)) for at in places])
    words: list[str] = []
    begin: int | None = None
    for place, loud in enumerate([*(power > 0.3 * power.max()), False]):
        if loud and begin is None:
            begin = place
        elif not loud and begin is not None:
            part = samples[begin * size // 2 : (place + 1) * size // 2]
            frequency = np.abs(np.fft.rfft(part * np.hanning(len(part)), 4096)).argmax() * rate / 4096
            word = min(tones.WORDS, key=lambda word: abs(tones.WORDS[word] - frequency))
            words += [word] if words[-1:] != [word] else []
            begin = None
    return words


def test_frames_turn_into_the_sound_that_they_are_of() -> None:
    mel = InvertibleLogMel(tones.RATE, 24, 0.03, 0.01)
    words = ["high", "low", "middle", "high"]
    sound = tones.sing(words, np.random.default_rng(4)).astype(np.float32)
    frames = mel.scaled(mel(sound))
    again = mel.sound(frames)
    assert heard(again, tones.RATE) == words
    assert len(again) == (len(frames) - 1) * mel.step
    strong = frames > 0
    assert np.abs(mel.scaled(mel(again)) - frames)[strong].mean() < 0.1, "in units of 17 dB"
    assert not len(mel.sound(frames[:1])), "one frame has no sound"


def test_wav_files_keep_the_sound_and_are_never_clipped(tmp_path: Path) -> None:
    samples = np.sin(np.arange(500) / 5).astype(np.float32)
    for loudness in (0.5, 3.0):
        (tmp_path / "a.wav").write_bytes(wav_content(loudness * samples, 8000))
        again = read_wav(tmp_path / "a.wav")
        np.testing.assert_allclose(again.samples, samples * min(loudness, 1.0) / max(1.0, np.abs(samples).max()), atol=1e-3)
        assert again.rate == 8000


def test_the_model_sings_what_it_is_told(run: Path) -> None:
    model = library.load(run, device="cpu")
    texts = ["low", "high", "high low", "low high"]
    assert [heard(each.samples, each.rate) for each in model.translate(texts)] == [text.split() for text in texts]
    assert model.translate("LOW").samples.tolist() == model.translate("low").samples.tolist(), "task.lowercase"


def test_recordings_do_not_depend_on_their_batch_and_dropout_follows_from_the_text(run: Path) -> None:
    model = library.load(run, device="cpu")
    texts = ["low", "high low middle", "middle", "low low high", "high"]
    together, alone = model.translate(texts), [model.translate(text) for text in texts]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.frames, other.frames, atol=2e-4)
        assert one.score == pytest.approx(other.score, abs=1e-3)
    network: Any = model.model
    seeds = [1, 2, 1]
    first, second = (network.prenet.masks(torch.tensor(seeds), step) for step in (0, 1))
    assert torch.equal(first[0][0], first[0][2]), "the same text drops the same units"
    assert not torch.equal(first[0][0], first[0][1]) and not torch.equal(first[0], second[0])
    share, many = network.prenet.share, torch.cat(network.prenet.masks(torch.arange(2000), 3), -1)
    assert many.unique().tolist() == pytest.approx([0, 1 / (1 - share)])
    assert float((many == 0).float().mean()) == pytest.approx(share, abs=0.02)
    without = library.load(run, device="cpu", set=["task.test_dropout=false"]).translate("low")
    assert without.frames.shape != alone[0].frames.shape or np.abs(without.frames - alone[0].frames).max() > 1e-3


def test_the_command_line_writes_recordings(
    weft: tiny.Shell, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weft("predict", str(run), "high low", "-o", "x.wav")
    found = read_wav("x.wav")
    assert (found.rate, heard(found.samples, found.rate)) == (tones.RATE, ["high", "low"])
    document = json.loads(weft("predict", str(run), "high low", "--json"))
    assert base64.b64decode(document["audio"]) == Path("x.wav").read_bytes()
    assert document["seconds"] == pytest.approx(len(found.samples) / tones.RATE, abs=1e-3)
    Path("texts.txt").write_text("high low\n\nlow\n")
    weft("predict", str(run), "texts.txt", "-o", "spoken")
    assert Path("spoken/list.tsv").read_text() == "high low\t1.wav\nlow\t3.wav\n"
    assert len(read_wav("spoken/1.wav").samples) == len(found.samples)
    scores = json.loads(weft("evaluate", str(run), "--data", "spoken/list.tsv", "--json"))["scores"][str(run)]
    assert set(scores) == {"mcd", "unended", "diagonal", "loss"} and scores["mcd"] < 3


def test_bad_input_is_refused_with_a_sentence(weft: tiny.Shell, run: Path, data: tuple[str, str], tmp_path: Path) -> None:
    said = [str(run), "high low"]
    weft.fails("predict", *said, says=["the outputs are no text", "-o output.wav"])
    weft.fails("predict", *said, "-o", str(tmp_path / "x.mp3"), says=["x.mp3: end the file name in .wav, or give a folder"])
    weft.fails("predict", str(run), "high\nlow", "-o", str(tmp_path / "x.wav"), says=["x.wav: there are 2 texts", "a folder"])
    weft.fails("predict", str(run), " ", "-o", str(tmp_path / "x.wav"), says=["there is nothing to say"])
    (tmp_path / "text.txt").write_text("high low\n")
    lines = ["predict", str(run), str(tmp_path / "text.txt"), "-o", str(tmp_path / "x.wav")]
    weft.fails(*lines, "--prefix", str(tmp_path / "text.txt"), says=["a spoken text has no --prefix and no --glossary"])
    weft.fails(*lines, "--shard", "0/2", says=["the outputs of this run are files; add --json"])
    bad = tmp_path / "bad.tsv"
    bad.write_text("low\tnone.wav\n")
    config = str(run / "config.yaml")
    weft.fails("train", config, "--data", str(bad), "--out", str(tmp_path / "new"), says=["bad.tsv, row 1", "none.wav"])
    swapped = data[0].removesuffix("#2,1")
    weft.fails("train", config, "--data", swapped, "--out", str(tmp_path / "new"), says=["names wav files", "list.tsv#2,1"])
    weft.fails("train", config, "--data", "tones", "--out", str(tmp_path / "new"), says=["a text, a tab and a file per line"])
    with pytest.raises(ConfigError, match=r"task\.hop: .* at most half of task\.window, 0\.015"):
        train(tmp_path / "hop", data, task__window=0.03, task__hop=0.02)
    with pytest.raises(ConfigError, match=r"task\.scaling"):
        train(tmp_path / "scaling", data, task__scaling="recording")
    with pytest.raises(ConfigError, match=r"model\.decoder: NonAutoregressive.* cannot write frames of sound"):
        train(tmp_path / "parallel", data, model={"kind": "composed", "decoder": {"kind": "parallel", "layers": 1}})
    with pytest.raises(ConfigError, match=r"model\.decoder\.ngrams: .* set it to 1"):
        train(tmp_path / "ngrams", data, model={"kind": "bytenet", "dim": 16, "ngrams": 2, "share_embeddings": "output"})
    with pytest.raises(ConfigError, match=r"task\.guided_weight needs a model whose cross-attention has weights; set it to 0"):
        train(tmp_path / "bytenet", data, model={"kind": "bytenet", "dim": 16, "share_embeddings": "output"})


def test_texts_without_an_end_and_unknown_words_are_reported(run: Path) -> None:
    remarks: list[str] = []
    model = library.load(run, device="cpu", warn=remarks.append)
    cut = model.translate("low high low", max_length=2)
    assert len(cut.frames) == 2 * 4
    assert "'low high low' did not end within 2 steps" in remarks[0] and "raise decode.max_length" in remarks[0]
    model.translate("low shriek")
    assert "line 1: not in the training texts" in remarks[-1] and "shriek" in remarks[-1]
    empty = model.translate("")
    assert (empty.text, len(empty.samples), empty.seconds) == ("", 0, 0.0)


def test_a_page_plays_the_recording_without_a_network(run: Path) -> None:
    page = explain_page([library.load(run, device="cpu").explain("high low")])
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src 'none'" in policy and "media-src data:" in policy and "http:" not in page and "https:" not in page
    (content,) = re.findall(r'src="data:audio/wav;base64,([^"]*)"', page)
    with wave.open(io.BytesIO(base64.b64decode(content))) as sound:
        assert sound.getframerate() == tones.RATE
    assert page.count("attention of") == 3, "both words and the end"


def test_a_server_answers_with_recordings(run: Path) -> None:
    with running(Models([ModelLocation((str(run),))], device="cpu")) as served:
        (answer,) = served.translate("high low")
        again = read_wav_content(base64.b64decode(answer["audio"]))
        assert heard(again, tones.RATE) == ["high", "low"]
        explained = served.client.post("/v1/explain", json={"text": "high low"})
        assert "data:audio/wav;base64," in explained.text
        assert "media-src data:" in explained.headers["content-security-policy"]


def read_wav_content(content: bytes) -> np.ndarray:
    with wave.open(io.BytesIO(content)) as sound:
        return np.frombuffer(sound.readframes(sound.getnframes()), "<i2") / 32768


@pytest.mark.parametrize(
    "decoder",
    [
        {"kind": "transformer", "dim": 16, "heads": 2, "feedforward": 16, "layers": 1},
        {"kind": "rnn", "dim": 16, "attention": {"kind": "monotonic", "hold": True}},
        {"kind": "rnn", "dim": 16, "style": "luong", "attention": "general"},
    ],
    ids=["transformer", "monotonic", "luong"],
)
def test_other_decoders_write_frames_too(tmp_path: Path, data: tuple[str, str], decoder: dict[str, Any]) -> None:
    """Each predicts frames better than no model: frames of zeros, the mean of speech."""
    model = {"kind": "composed", "encoder": {"kind": "rnn", "dim": 16}, "decoder": decoder}
    short = {"train__steps": 30, "decode__max_length": 5}
    result = train(tmp_path / "run", data, model=model, **short)
    again = library.load(tmp_path / "run", device="cpu").translate(["low", "high middle"])
    assert 0 < result.scores["diagonal"] <= 100
    assert all(np.isfinite(each.frames).all() and len(each.frames) for each in again)
    texts = library.load(tmp_path / "run", device="cpu")
    np.testing.assert_allclose(texts.translate("high middle").frames, again[1].frames, atol=1e-4)
