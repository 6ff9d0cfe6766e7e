"""Log-mel features against librosa 0.11, whose values are stored in tests/fixtures/librosa_log_mel.npz."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from weft.tasks.transcription.log_mel import LogMel, resample

STORED = Path(__file__).parents[1] / "fixtures" / "librosa_log_mel.npz"


@pytest.mark.parametrize(("rate", "mels"), [(8000, 40), (16000, 80)])
def test_log_mel_equals_librosa(rate: int, mels: int) -> None:
    """Stored: log of librosa.feature.melspectrogram with win_length and hop_length of 25 and 10 ms, at least 1e-10."""
    stored = np.load(STORED)
    found = LogMel(rate, mels)(stored[f"sound_{rate}"])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, stored[f"mel_{rate}"], atol=2e-4)


def test_features_are_exact_while_a_model_runs_in_half_precision() -> None:
    sound = np.load(STORED)["sound_8000"]
    with torch.autocast("cpu", torch.bfloat16):
        inside = LogMel(8000)(sound), resample(sound, 8000, 6000)
    np.testing.assert_array_equal(inside[0], LogMel(8000)(sound))
    np.testing.assert_array_equal(inside[1], resample(sound, 8000, 6000))


def test_a_single_sample_gives_one_frame() -> None:
    assert LogMel(8000)(np.ones(1, np.float32)).shape == (1, 40)
