"""Where Triton kernels run: each GPU is probed once, and a failure is reported once."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from weft.layers import kernels

GPU: Any = SimpleNamespace(device=torch.device("cuda", 0))
OTHER: Any = SimpleNamespace(device=torch.device("cuda", 1))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that this machine has GPUs of the given capabilities, and a Triton that works or raises an error."""

    def become(*capabilities: tuple[int, int], error: Exception | None = None) -> list[int]:
        probes: list[int] = []

        def probe(index: int) -> None:
            probes.append(index)
            if error is not None:
                raise error

        module = ModuleType("weft.layers.kernels.triton")
        module.probe = probe  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "weft.layers.kernels.triton", module)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capabilities[index])
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(kernels, "_PROBED", {})
        return probes

    return become


def test_a_gpu_is_probed_once(machine: Any) -> None:
    probes = machine((9, 0))
    assert (
        kernels.triton_available(GPU)
        and kernels.triton_available(GPU)
        and kernels.modern(GPU.device)
        and kernels.modern(torch.device("cuda"))
    )
    assert probes == [0]


def test_an_old_gpu_is_not_probed(machine: Any) -> None:
    probes = machine((7, 5))
    assert not kernels.triton_available(GPU)
    assert not kernels.modern(GPU.device)
    assert probes == []


def test_each_gpu_has_its_own_answer(machine: Any) -> None:
    probes = machine((9, 0), (7, 5))
    assert kernels.triton_available(GPU) and not kernels.triton_available(OTHER)
    assert kernels.modern(GPU.device) and not kernels.modern(OTHER.device)
    assert probes == [0]


def test_a_failure_is_reported_once(machine: Any) -> None:
    machine((8, 0), error=RuntimeError("Failed to find C compiler"))
    with pytest.warns(UserWarning, match=r"GPU 0.*Failed to find C compiler.*apt install gcc python3-dev") as warned:
        answers = [kernels.triton_available(GPU) for _ in range(2)]
    assert answers == [False, False]
    assert len(warned) == 1
    assert kernels.modern(GPU.device)


def test_a_cpu_is_never_probed(machine: Any) -> None:
    probes = machine((9, 0))
    assert not kernels.triton_available(torch.zeros(1))
    assert not kernels.modern(torch.device("cpu"))
    assert probes == []
