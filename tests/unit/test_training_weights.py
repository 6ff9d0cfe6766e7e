"""What is read from files of weights that weft did not write."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from weft.errors import RunError
from weft.training.weights import read_metadata


def test_metadata_of_another_program_is_an_error_that_says_so(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors", {"weft": "0.1.0"})
    with pytest.raises(RunError, match="metadata"):
        read_metadata(tmp_path / "model.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "plain.safetensors")
    assert read_metadata(tmp_path / "plain.safetensors") == {}
