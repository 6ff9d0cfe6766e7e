"""Reading wav files, resampling, lists of files, and augmentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers import tones
from weft.data.batch import Layout, PairBatch, Source
from weft.data.column_checks_and_listed_files import open_listed, read_listed
from weft.data.tokenizers.word_character_byte import WordTokenizer
from weft.errors import DataError
from weft.tasks.transcription.data import count_unalignable, recording_encoding
from weft.tasks.transcription.log_mel import LogMel, features, read_wav, resample, wav_size
from weft.tasks.transcription.spec_augment import SpecAugment


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_integers_of_every_width_give_the_same_sound(width: int, tmp_path: Path) -> None:
    wanted = np.array([0.0, 0.5, -0.5, 0.99, -0.99, 0.25])
    sound = read_wav(tones.write_wav(tmp_path / "a.wav", wanted, 8000, width=width))
    assert sound.rate == 8000
    np.testing.assert_allclose(sound.samples, wanted, atol=2 / (1 << (8 * width - 1)))


def test_channels_are_averaged(tmp_path: Path) -> None:
    both = np.array([[0.5, 0.1], [-0.5, -0.1], [0.2, -0.2]])
    np.testing.assert_allclose(
        read_wav(tones.write_wav(tmp_path / "a.wav", both, channels=2)).samples, [0.3, -0.3, 0.0], atol=1e-4
    )


def test_bad_files_are_named_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("not a sound")
    (tmp_path / "nothing.wav").write_bytes(b"")
    tones.write_wav(tmp_path / "none.wav", np.zeros(0))
    whole = tones.write_wav(tmp_path / "whole.wav", np.zeros(400)).read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[:500])
    reasons = {
        "missing.wav": "there is no such file",
        "text.wav": "not a wav file",
        "nothing.wav": "the file is empty or ends too early",
        "none.wav": "0 samples",
        "cut.wav": "cut short",
    }
    for name, reason in reasons.items():
        with pytest.raises(DataError, match=reason) as error:
            read_wav(tmp_path / name)
        assert name in str(error.value)


def test_floats_are_refused_with_advice(tmp_path: Path) -> None:
    path = tones.write_wav(tmp_path / "a.wav", np.zeros(10))
    content = bytearray(path.read_bytes())
    content[20] = 3  # the format code of IEEE floats
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"ffmpeg -i a\.wav"):
        read_wav(path)


@pytest.mark.parametrize(("old", "new"), [(8000, 16000), (16000, 8000), (8000, 11025), (44100, 8000)])
def test_a_tone_is_the_same_tone_at_another_rate(old: int, new: int) -> None:
    def tone(rate: int) -> np.ndarray:
        return np.sin(2 * np.pi * 440 * np.arange(rate // 4) / rate).astype(np.float32)

    found, wanted = resample(tone(old), old, new), tone(new)
    assert abs(len(found) - len(wanted)) <= 1
    middle = slice(new // 50, len(wanted) - new // 50)
    np.testing.assert_allclose(found[middle], wanted[middle], atol=2e-3)


@pytest.mark.parametrize(("count", "rate"), [(1, 4000), (39, 4000), (40, 4000), (1000, 11025), (7, 44100), (4001, 3000)])
def test_the_head_of_a_file_tells_its_number_of_frames(count: int, rate: int, tmp_path: Path) -> None:
    path = tones.write_wav(tmp_path / "a.wav", 0.1 * np.ones(count), rate)
    assert wav_size(path) == (count, rate)
    mel = LogMel(4000, 8)
    assert mel.frames(count, rate) == len(features(path, mel))


def test_frequencies_above_the_new_limit_vanish() -> None:
    high = np.sin(2 * np.pi * 6000 * np.arange(4000) / 16000).astype(np.float32)
    assert np.abs(resample(high, 16000, 8000)[100:-100]).max() < 0.02


def test_features_are_normalised_and_silence_stays_finite(tmp_path: Path) -> None:
    mel = LogMel(tones.RATE, 12)
    tone = tones.write_wav(tmp_path / "a.wav", tones.sing(["low", "high"], np.random.default_rng(1)))
    found = features(tone, mel)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(found.std(0), 1, atol=1e-3)
    silent = features(tones.write_wav(tmp_path / "b.wav", np.zeros(800)), mel)
    assert not silent.any()


def test_names_are_relative_to_the_list_and_errors_name_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    tones.write_wav(tmp_path / "sub" / "a.wav", np.zeros(10))
    (tmp_path / "sub" / "list.tsv").write_text("a.wav\tone\nb.wav\ttwo\n")
    monkeypatch.chdir(tmp_path)
    pairs = open_listed("sub/list.tsv")
    found = iter(pairs)
    assert next(found) == (str(tmp_path / "sub" / "a.wav"), "one")
    with pytest.raises(DataError, match=r"sub/list.tsv, row 2: .*b.wav: there is no such file"):
        pairs.digest()
    Path("sub/names.txt").write_text("a.wav\tone\n\n../c.wav\n")
    assert list(read_listed(Path("sub/names.txt"))) == [str(tmp_path / "sub" / "a.wav"), str(tmp_path / "c.wav")]


def test_the_digest_changes_with_the_sound(tmp_path: Path) -> None:
    tones.write_wav(tmp_path / "a.wav", np.zeros(10))
    (tmp_path / "list.tsv").write_text("a.wav\tone\n")
    pairs = open_listed(str(tmp_path / "list.tsv"))
    before = pairs.digest()
    assert pairs.digest() == before
    tones.write_wav(tmp_path / "a.wav", np.ones(10))
    assert pairs.digest() != before


def test_recordings_that_ctc_cannot_align_are_counted(tmp_path: Path) -> None:
    tokenizer = WordTokenizer()
    tokenizer.train(["a b"], 10)
    texts = {"a b": 2, "a a": 2, "a b b": 4, "b": 1, "b b a a": 5}
    for number, vectors in enumerate(texts.values()):
        tones.write_wav(tmp_path / f"{number}.wav", np.zeros(80 * (vectors - 1)) if vectors > 1 else np.zeros(1))
    (tmp_path / "list.tsv").write_text("".join(f"{number}.wav\t{text}\n" for number, text in enumerate(texts)))
    pairs = open_listed(str(tmp_path / "list.tsv"))
    mel = LogMel(tones.RATE, 8, 0.025, 0.01)  # 40 samples between frames
    corpus = recording_encoding(tokenizer, mel, 50).prepare([pairs], folder=tmp_path / "cache")
    assert corpus.lengths[:, 0].tolist() == [3, 3, 7, 1, 9]
    assert corpus.values["source"].shape == (23, 8)
    assert count_unalignable(corpus, 1) == 0
    assert count_unalignable(corpus, 2) == 2, "two vectors for a a, five for b b a a"


def batch() -> PairBatch:
    layout, texts = Layout.padded([50, 30]), Layout.padded([2, 2])
    values = torch.where(layout.mask[..., None], torch.ones(2, 50, 10), 0.0)
    ids = torch.ones(2, 2, dtype=torch.long)
    return PairBatch(torch.arange(2), Source(values, layout), ids, texts, ids)


def test_masks_follow_from_the_key_and_cover_at_most_what_is_allowed() -> None:
    augment = SpecAugment(1, 8, 1, 3)
    one, again, other = (augment.batch(batch(), key).source.values for key in ((1, 0, 0, 3), (1, 0, 0, 3), (1, 0, 0, 4)))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    masked = 0
    for step in range(50):
        found = augment.batch(batch(), (step,)).source
        assert found.layout is not None
        assert found.layout.counts == (50, 30)
        for row, count in zip(found.values, found.layout.counts, strict=True):
            gone = row[:count] == 0
            assert gone.all(1).sum() <= min(8, 0.2 * count)
            assert gone.all(0).sum() <= 3
            masked += int(gone.any())
            assert not row[count:].any()
    assert masked > 50


def test_tempo_and_pitch_change_length_and_bands_within_their_limits() -> None:
    frames = np.zeros((100, 20), np.float32)
    frames[40:60, 10] = 1
    draw = np.random.default_rng(0)
    lengths, tops = set(), set()
    for _ in range(30):
        found = SpecAugment(tempo=0.1, pitch=0.1)(frames, draw)
        lengths.add(len(found))
        tops.add(int(found.sum(0).argmax()))
    assert 90 <= min(lengths) < 97
    assert 103 < max(lengths) <= 110
    assert tops == {9, 10, 11}
    assert len(SpecAugment(tempo=0.5)(frames, np.random.default_rng(2), 100)) <= 100
    assert not SpecAugment(2, 0, 0, 5)


def test_level_changes_all_frames_alike_and_bands_evenly_within_its_limits() -> None:
    frames, draw = np.random.default_rng(1).normal(size=(30, 9)).astype(np.float32), np.random.default_rng(2)
    changes = [SpecAugment(level=0.5)(frames, draw) - frames for _ in range(50)]
    for change in changes:
        np.testing.assert_allclose(change, np.broadcast_to(change[0], change.shape), atol=1e-6)
        np.testing.assert_allclose(np.diff(change[0], 2), 0, atol=1e-6)
    louder, brighter = np.array([(change[0, 4], change[0, 8] - change[0, 4]) for change in changes]).T
    for values in (louder, brighter):
        assert -0.5 <= values.min() < -0.4
        assert 0.4 < values.max() <= 0.5
