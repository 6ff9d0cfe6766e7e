"""Transcription as the sound comes: in pieces of any size, the text is that of the whole recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft as library
from tests.helpers import tiny, tones
from weft.decoding.decoding_options import resolve_options
from weft.errors import ConfigError
from weft.runs.translator import Translator
from weft.tasks.transcription.log_mel import LogMel, Samples, StreamingLogMel
from weft.tasks.transcription.predictor import TranscriptionPredictor
from weft.tasks.transcription.streaming import StreamingTranscriber
from weft_studies.bits.data import read_frames
from weft_studies.bits.task import BitsPredictor

SETTINGS: dict[str, Any] = {
    **{key: value for key, value in tiny.SETTINGS.items() if not key.startswith("model.")},
    "task": {"kind": "transcription", "mels": 8, "scaling": "fixed", "ctc_weight": 0.3, "decode_ctc": 0},
    "data.max_length": 400,
    "train.steps": 1,
    "model": {
        "kind": "composed",
        "front": {"kind": "frames", "convolutions": 2, "kernel": 5, "channels": 8},
        "encoder": {"kind": "rnn", "dim": 16, "layers": 2, "bidirectional": False},
        "decoder": {"kind": "rnn", "dim": 16, "attention": {"kind": "monotonic"}, "bridge": "zeros"},
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt nothing."""
    folder = tmp_path_factory.mktemp("listening")
    data = str(tones.recordings(folder / "tones", 8))
    library.train("transformer-tiny", data=data, valid=data, out=folder / "run", set=SETTINGS)
    return folder / "run"


@pytest.fixture
def translator(run: Path) -> Translator:
    return library.load(run, device="cpu")


def sing(count: int = 10) -> Samples:
    draw = np.random.default_rng(3)
    return tones.sing([str(word) for word in draw.choice(list(tones.WORDS), count)], draw).astype(np.float32)


def scramble(translator: Translator, seed: int) -> None:
    """Weights so large that scans stop in many places and many words are said."""
    with torch.no_grad():
        draw = torch.Generator().manual_seed(seed)
        for parameter in translator.model.parameters():
            parameter.normal_(0, 0.7, generator=draw)


@pytest.mark.parametrize("size", [1, 37, 400])
def test_frames_of_pieces_are_those_of_the_whole_sound(size: int) -> None:
    mel, sound = LogMel(tones.RATE, 12, scaling="fixed"), sing(1)[: 700 if size == 1 else None]
    live = StreamingLogMel(mel)
    found = [live(sound[first : first + size]) for first in range(0, len(sound), size)]
    whole = mel.scaled(mel(sound))
    np.testing.assert_allclose(np.concatenate([*found, live(sound[:0], last=True)]), whole, atol=1e-4)
    assert len(np.concatenate(found)) >= len(whole) - mel.fft // mel.step


@pytest.mark.parametrize(
    ("stops", "hold", "forced", "limit"),
    [
        ("each", False, False, {}),
        ("total", True, False, {"min_length": 5}),
        ("total", False, True, {"no_repeat_ngram": 2}),
        ("each", True, True, {"max_length": 3}),
    ],
)
def test_the_text_is_that_of_the_whole_recording(
    translator: Translator, tmp_path: Path, stops: str, hold: bool, forced: bool, limit: dict[str, int]
) -> None:
    sound, early, texts = sing(), 0, set()
    file = str(tones.write_wav(tmp_path / "a.wav", sound))
    sound = (np.round(sound * 32767) / 32768).astype(np.float32)  # as in the file
    attention: Any = translator.model.decoder.cross  # type: ignore[union-attr]
    attention.stops, attention.hold, attention.forced = stops, hold, forced
    for seed in range(6):
        scramble(translator, seed)
        whole = translator.translate(file, beam=1, **limit).text
        half = len(sound) // 2
        for size in (333, half):
            parts = list(translator.listen((sound[at : at + size] for at in range(0, len(sound), size)), **limit))
            assert "".join(parts) == whole
        texts.add(whole)
        early += len(parts) > 1
    assert len(texts) > 2
    assert early or limit == {"max_length": 3}, "some words are certain before the end"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda found: setattr(found, "mel", replace(found.mel, scaling="recording")), "task.scaling: fixed"),
        (lambda found: setattr(found.model.decoder.bridge, "kind", "tanh"), "monotonic attention can write while it listens"),
        (lambda found: setattr(found.model.decoder, "cross", None), "monotonic attention can write while it listens"),
        (
            lambda found: setattr(found.model.encoder.front, "reach", None),
            "model.front: FrameFrontend reads a source as a whole",
        ),
        (lambda found: setattr(found.model.encoder.stack, "both", True), "bidirectional: false"),
    ],
)
def test_a_model_that_needs_the_whole_sound_says_so(translator: Translator, change: Callable[[Any], None], says: str) -> None:
    predictor = translator.predictor(beam=1)
    assert isinstance(predictor, TranscriptionPredictor)
    change(predictor)
    with pytest.raises(ConfigError, match=says):
        StreamingTranscriber(predictor)


def test_only_greedy_transcripts_are_written_as_sound_comes(translator: Translator) -> None:
    with pytest.raises(ConfigError, match=r"decode\.beam: 1"):
        translator.listen([], beam=4)
    options = resolve_options(translator.config.decode, torch.device("cpu"))
    with pytest.raises(ConfigError, match="only a run that transcribes can listen"):
        BitsPredictor(translator.model, read_frames, options).listen([])


def test_the_command_line_listens_to_files_and_to_standard_input(run: Path, tmp_path: Path, weft: tiny.Shell) -> None:
    file = tones.write_wav(tmp_path / "a.wav", sing())
    whole = weft("predict", run, file)
    assert weft("predict", run, file, "--stream") == weft("predict", run, "--stream", stdin=file.read_bytes()) == whole
    other = tones.write_wav(tmp_path / "b.wav", sing(), 16000)
    weft.fails("predict", run, other, "--stream", says=["16,000 samples per second", "listens at 4,000"])
    weft.fails("predict", run, "--stream", stdin=b"no sound", says=["standard input: this is not a wav file"])
    silent = tones.write_wav(tmp_path / "c.wav", np.zeros(0))
    weft.fails("predict", run, silent, "--stream", says=["c.wav", "0 samples"])
    weft.fails("predict", run, file, "--stream", "--json", says=["--stream writes plain text"])
