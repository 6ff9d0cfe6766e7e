"""The choice of the device, and what an Apple GPU lacks, simulated on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import weft
from tests.helpers import tiny
from weft.decoding.ctc_decoding import prefix_beams
from weft.errors import DeviceError
from weft.layers import kernels
from weft.runs.device_and_precision import choose_device


class NoFloat64(TorchDispatchMode):
    """Refuses float64 as Apple's GPUs do."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise TypeError(f"{function}: Cannot convert a MPS Tensor to float64 dtype")
        return found


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU without float64, whose tensors are treated as those of an Apple GPU."""
    real = kernels.widest_float

    def widest(device: torch.device) -> torch.dtype:
        return real(torch.device("mps"))

    import weft.attention.core.feature_maps
    import weft.decoding.ctc_decoding
    import weft.decoding.length_and_coverage_penalty
    import weft.training.update_step

    for module in (
        weft.attention.core.feature_maps,
        weft.decoding.ctc_decoding,
        weft.decoding.length_and_coverage_penalty,
        weft.training.update_step,
    ):
        monkeypatch.setattr(module, "widest_float", widest)
    with NoFloat64():
        yield


def test_an_apple_gpu_is_used_if_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"there is no device 'mps'; this machine has cpu$"):
        choose_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("mps") == torch.device("mps") and choose_device("auto") == torch.device("cpu")
    with pytest.raises(DeviceError, match=r"this machine has cpu, mps$"):
        choose_device("cuda")


def test_the_widest_type_of_a_device() -> None:
    assert kernels.widest_float(torch.device("mps")) == torch.float32
    assert kernels.widest_float(torch.device("cpu")) == kernels.widest_float(torch.device("cuda")) == torch.float64


def test_translation_needs_no_float64(apple: None, tmp_path: Path) -> None:
    tiny.train(tmp_path / "run", settings={"train.steps": 3, "train.ema": 0.9})
    found = weft.load(tmp_path / "run", device="cpu", set=["decode.search={kind: beam, width: 2, coverage_penalty: 0.2}"])
    assert found.translate("a b").text is not None


def test_language_models_need_no_float64(apple: None, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b c d e f g h\n" * 50)
    small = {"model.dim": 16, "model.heads": 2, "model.decoder_layers": 1, "train.steps": 2, "train.batch_tokens": 64}
    always = {"train.device": "cpu", "train.tensorboard": False, "train.threads": 1}
    data = str(tmp_path / "text.txt")
    weft.train("lm-tiny", data=data, valid=data, out=tmp_path / "run", set={**small, **always})


def test_a_ctc_search_needs_no_float64(apple: None) -> None:
    logits = torch.randn(2, 5, 4)
    found = prefix_beams(logits, torch.tensor([5, 3]), blank=3, width=2)
    assert len(found) == 2
