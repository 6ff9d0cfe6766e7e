"""Where kernels of our own serve: they are tried out once, and what does not work is said once and done without."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from weft import kernels

GPU: Any = SimpleNamespace(device=torch.device("cuda"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a GPU of a given year's capability, and a Triton that works or raises, into this one."""

    def become(capability: tuple[int, int], error: Exception | None = None) -> list[int]:
        tried: list[int] = []

        def probe() -> None:
            tried.append(1)
            if error is not None:
                raise error

        module = ModuleType("weft.kernels.triton.probe")
        module.probe = probe  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "weft.kernels.triton.probe", module)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        for name in ("_modern", "_working"):
            monkeypatch.setattr(kernels, name, None)
        return tried

    return become


def test_they_are_tried_out_once(machine: Any) -> None:
    tried = machine((9, 0))
    assert kernels.serve(GPU) and kernels.serve(GPU) and kernels.modern(GPU.device)
    assert tried == [1]


def test_a_gpu_that_is_too_old_is_not_asked(machine: Any) -> None:
    tried = machine((7, 5))
    assert not kernels.serve(GPU)
    assert not kernels.modern(GPU.device)
    assert tried == []


def test_what_does_not_work_is_said_once(machine: Any) -> None:
    machine((8, 0), RuntimeError("Failed to find C compiler"))
    with pytest.warns(UserWarning, match=r"Failed to find C compiler.*apt install gcc python3-dev") as said:
        found = [kernels.serve(GPU) for _ in range(2)]
    assert found == [False, False]
    assert len(said) == 1
    assert kernels.modern(GPU.device)


def test_a_cpu_asks_for_nothing(machine: Any) -> None:
    tried = machine((9, 0))
    assert not kernels.serve(torch.zeros(1))
    assert not kernels.modern(torch.device("cpu"))
    assert tried == []
