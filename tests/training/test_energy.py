"""Energy by the counters of the machine: sums of differences, counters that begin anew, and machines without any."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import small_task
from weft.runs.run_folder import records
from weft.training import distributed, energy
from weft.training.energy import EnergyMeter, gpu_counters
from weft.training.log import open_log
from weft.training.model_card import training_facts

CPU = torch.device("cpu")


def package(folder: Path, name: str, joules: float, most: float = 1000.0) -> None:
    where = folder / name
    where.mkdir(exist_ok=True)
    (where / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
    (where / "max_energy_range_uj").write_text(f"{round(most * 1e6)}\n")


def test_packages_add_up_parts_do_not_and_counters_begin_anew(tmp_path: Path) -> None:
    for name, joules in (("intel-rapl:0", 990.0), ("intel-rapl:1", 5.0), ("intel-rapl:0:0", 1.0)):
        package(tmp_path, name, joules)
    meter = EnergyMeter(CPU, tmp_path)
    assert meter.names == "processor" and meter.since() == 0
    package(tmp_path, "intel-rapl:0", 20.0)
    package(tmp_path, "intel-rapl:1", 7.5)
    package(tmp_path, "intel-rapl:0:0", 900.0)
    assert meter.since() == pytest.approx(30 + 2.5) and meter.since() == 0
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    package(tmp_path, "intel-rapl:0", 21.0)
    assert meter.since() == pytest.approx(1.0) and len(meter.counters) == 1


def test_a_machine_without_counters_measures_nothing(tmp_path: Path) -> None:
    assert EnergyMeter(CPU, tmp_path).names == "" and EnergyMeter(CPU, tmp_path).since() == 0
    assert training_facts({})["energy"].startswith("not measured")


def test_the_energy_of_a_resumed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Steady(EnergyMeter):
        """Ten joules for each question."""

        names = "processor"  # type: ignore[assignment]

        def since(self) -> float:
            return 10.0

    monkeypatch.setattr(distributed, "EnergyMeter", Steady)
    joules = []
    for steps in (3, 6):
        log = open_log(tmp_path, steps, tensorboard=False, terminal=False)
        small_task.train(tmp_path, steps=steps, resume=steps > 3, log=log)
        joules.append(records(tmp_path)[-1]["joules"])
    assert 10 <= joules[0] < joules[1]
    said = training_facts(records(tmp_path)[-1])["energy"]
    assert said.startswith(f"{joules[1] / 3600:.3g} Wh, by the counters of processor")


def test_the_counter_of_a_gpu_is_asked_through_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        millijoules, fails = 5000, False

        def nvmlInit_v2(self) -> int:  # noqa: N802
            return 0

        def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:  # noqa: N802
            return 0 if name == b"GPU-1234" else 6

        def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, place: Any) -> int:  # noqa: N802
            place._obj.value = self.millijoules
            return 3 if self.fails else 0

    class Properties:
        uuid = "1234"

    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    (counter,) = gpu_counters(torch.device("cuda", 0))
    library.millijoules = 7500
    assert counter.name == "GPU" and counter.since() == pytest.approx(2.5)
    library.fails = True
    with pytest.raises(OSError):
        counter.since()
    assert gpu_counters(torch.device("cuda", 0)) == [], "a GPU that does not count"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(energy.NVML)))
    assert gpu_counters(torch.device("cuda", 0)) == [] and gpu_counters(CPU) == []
