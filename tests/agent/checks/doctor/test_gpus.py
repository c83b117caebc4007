"""NVML's answers: a double with the names of nvidia-ml-py, since no driver is here."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rangewatch.checks.doctor import checks
from rangewatch.checks.doctor.details import environment
from rangewatch.checks.doctor.gpus import gpus
from rangewatch.checks.doctor.machine import Machine


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({18: "Driver/library version mismatch", 15: "GPU is lost"}.get(value, "Unknown Error"))
        self.value = value


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    double: Any = ModuleType("pynvml")
    double.NVMLError, double.NVML_ERROR_LIBRARY_NOT_FOUND, double.NVML_ERROR_DRIVER_NOT_LOADED = NVMLError, 12, 9
    double.shutdowns = []
    double.nvmlInit = lambda: None
    double.nvmlShutdown = lambda: double.shutdowns.append(1)
    double.nvmlSystemGetCudaDriverVersion_v2 = lambda: 12080
    double.nvmlSystemGetDriverVersion = lambda: "570.86.15"
    double.nvmlDeviceGetCount = lambda: 2
    double.nvmlDeviceGetHandleByIndex = lambda index: index
    double.nvmlDeviceGetCudaComputeCapability = lambda handle: (9, 0)
    double.nvmlDeviceGetName = lambda handle: b"NVIDIA H100 80GB HBM3"  # bytes before version 11.5 of the package
    double.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
    double.nvmlDeviceGetPciInfo = lambda handle: SimpleNamespace(busId="00000000:1B:00.0")
    monkeypatch.setitem(sys.modules, "pynvml", double)
    return double


def _raise(value: int) -> Any:
    def fail(*arguments: object) -> None:
        raise NVMLError(value)

    return fail


def test_what_nvml_says(nvml: Any) -> None:
    found = gpus(Machine(), deep=True)
    assert (found["driver"], found["driver_cuda"]) == ("570.86.15", "12.8")
    assert found["cards"][1] == {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-1",
        "bus_id": "00000000:1B:00.0",
        "capability": "9.0",
    }
    assert nvml.shutdowns == [1]


def test_in_training_nvml_is_left_alone(nvml: Any) -> None:
    nvml.nvmlInit = _raise(999)
    assert gpus(Machine(), deep=False)["nvml_error"] is None
    assert nvml.shutdowns == []


@pytest.mark.parametrize("value", [9, 12])
def test_no_driver_is_no_fault(nvml: Any, value: int) -> None:
    nvml.nvmlInit = _raise(value)
    assert gpus(Machine(), deep=True)["nvml_error"] is None


@pytest.mark.parametrize(("place", "value"), [("nvmlInit", 18), ("nvmlDeviceGetHandleByIndex", 15)])
def test_a_driver_that_fails_is_a_finding(nvml: Any, place: str, value: int) -> None:
    setattr(nvml, place, _raise(value))
    details = environment(deep=False) | {"gpu": gpus(Machine(), deep=True)}
    assert "driver_fault" in [finding.code for finding in checks.findings(details)]


def test_a_driver_that_goes_meanwhile_is_a_finding(nvml: Any) -> None:
    nvml.nvmlDeviceGetCount = nvml.nvmlShutdown = _raise(15)
    assert gpus(Machine(), deep=True)["nvml_error"] == "GPU is lost"
