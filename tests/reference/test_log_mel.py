"""Log-mel features against librosa 0.11, whose values are stored in tests/fixtures/librosa_log_mel.npz."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.data.sound import LogMel

STORED = Path(__file__).parents[1] / "fixtures" / "librosa_log_mel.npz"


@pytest.mark.parametrize(("rate", "mels"), [(8000, 40), (16000, 80)])
def test_log_mel_equals_librosa(rate: int, mels: int) -> None:
    """Stored: log of librosa.feature.melspectrogram with win_length and hop_length of 25 and 10 ms, at least 1e-10."""
    stored = np.load(STORED)
    found = LogMel(rate, mels)(stored[f"sound_{rate}"])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, stored[f"mel_{rate}"], atol=2e-4)


def test_a_single_sample_gives_one_frame() -> None:
    assert LogMel(8000)(np.ones(1, np.float32)).shape == (1, 40)
