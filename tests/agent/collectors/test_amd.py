"""AMD GPUs: a double of `amdsmi` with the functions and fields that version 7.0.2 publishes."""

from __future__ import annotations

import enum
import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from rangewatch.collectors.gpu import amd
from rangewatch.collectors.gpu.amd import AmdGpuCollector
from rangewatch.collectors.gpu.collector import GpuCollector
from rangewatch.core.options import Options
from tests.agent.collectors.conftest import Reported, info, row

MI300X = "3fff74a1-0000-1000-80d5-7c0d3a5b1f20"
BDFS = ("0000:05:00.0", "0000:c1:00.0")


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = err_code


class AmdSmiTemperatureType(enum.IntEnum):
    EDGE, HOTSPOT, JUNCTION, VRAM = 0, 1, 1, 2


class AmdSmiTemperatureMetric(enum.IntEnum):
    CURRENT = 0


class AmdSmiClkType(enum.IntEnum):
    SYS, GFX, MEM = 0, 0, 4


class Smi(ModuleType):
    """Two cards, of which the second is this rank's. `answers`: what a function returns, or the exception it raises."""

    def __init__(self) -> None:
        super().__init__("amdsmi")
        for each in (
            AmdSmiException,
            AmdSmiLibraryException,
            AmdSmiTemperatureType,
            AmdSmiTemperatureMetric,
            AmdSmiClkType,
        ):
            setattr(self, each.__name__, each)
        self.calls: list[str] = []
        self.answers: dict[str, Any] = {
            "amdsmi_init": None, "amdsmi_shut_down": None, "amdsmi_get_processor_handles": [0, 1],
            "amdsmi_get_gpu_device_bdf": lambda handle: BDFS[handle],
            "amdsmi_get_gpu_device_uuid": MI300X,
            "amdsmi_get_gpu_asic_info": {
                "market_name": "AMD Instinct MI300X", "vendor_id": "0x1002", "vendor_name": "AMD",
                "subvendor_id": "0x1002",
                "device_id": "0x74a1", "rev_id": "0x00", "asic_serial": "0xD57C0D3A5B1F20", "oam_id": 5,
                "num_compute_units": 304, "target_graphics_version": "gfx942", "subsystem_id": "0x74a1",
            },
            "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.14.14", "driver_date": "N/A"},
            "amdsmi_get_gpu_activity": {"gfx_activity": 97, "umc_activity": 41, "mm_activity": "N/A"},
            "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 69734},
            "amdsmi_get_power_info": {
                "socket_power": 712, "current_socket_power": 712, "average_socket_power": "N/A", "gfx_voltage": "N/A",
                "soc_voltage": "N/A", "mem_voltage": "N/A", "power_limit": 750,
            },
            "amdsmi_get_power_cap_info": {
                "power_cap": 750_000_000, "default_power_cap": 750_000_000, "dpm_cap": 0, "min_power_cap": 0,
                "max_power_cap": 750_000_000,
            },
            "amdsmi_get_clock_info": lambda handle, kind: {
                "clk": 2_094 if kind == AmdSmiClkType.GFX else 1_300, "min_clk": 132, "max_clk": 2_100,
                "clk_locked": "N/A", "clk_deep_sleep": 0,
            },
            "amdsmi_get_temp_metric": lambda handle, sensor, metric: {1: 71, 2: 58}[sensor],
            "amdsmi_get_violation_status": {
                "acc_ppt_pwr": 12, "active_prochot_thrm": False, "active_ppt_pwr": True, "active_socket_thrm": False,
                "active_vr_thrm": False, "active_hbm_thrm": "N/A", "per_ppt_pwr": 4,
            },
            "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 0, "deferred_count": 0},
            "amdsmi_get_gpu_bad_page_info": [
                {"value": 0, "page_address": 1 << 20, "page_size": 4096, "status": 0},
            ],
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        answers = self.__dict__.get("answers", {})
        if name not in answers:
            raise AttributeError(name)

        def body(*arguments: Any) -> Any:
            self.calls.append(name)
            answer = answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return body


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> Smi:
    """On a machine whose torch runs HIP on device 0, the card at c1:00.0."""
    double = Smi()
    monkeypatch.setitem(sys.modules, "amdsmi", double)
    monkeypatch.setattr(torch.version, "hip", "6.4.43484")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 1 << 30)
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    return double


@pytest.fixture
def reported() -> Reported:
    return Reported()


@pytest.fixture
def collector(smi: Smi, reported: Reported) -> Any:
    made = AmdGpuCollector(Options(), info("AMD Instinct MI300X"))
    made.start(reported)
    yield made
    made.stop()


def test_values_and_units(collector: AmdGpuCollector) -> None:
    (samples,) = collector.collect(7)
    assert (samples.source, samples.key) == ("gpu", MI300X)
    expected = {
        "step": 7, "present": 1, "utilization_gpu_percent": 97, "utilization_memory_percent": 41,
        "memory_used_bytes": 69734 << 20, "memory_total_bytes": 196592 << 20, "power_w": 712, "power_limit_w": 750,
        "temperature_c": 71, "temperature_memory_c": 58, "sm_clock_mhz": 2_094, "memory_clock_mhz": 1_300,
        "throttle_reasons": 4, "ecc_corrected_volatile": 3, "ecc_uncorrected_volatile": 0,
        "retired_pages_uncorrected": 1, "retired_pages_pending": 0,
    }  # fmt: skip
    assert row(samples) == expected
    about = msgspec.json.decode(msgspec.json.encode(samples.about))
    assert (about["name"], about["pci_bus_id"], about["device_index"]) == ("AMD Instinct MI300X", BDFS[1], 0)
    assert about["driver_version"] == "6.14.14"


def test_what_a_card_has_not_is_unknown(smi: Smi, collector: AmdGpuCollector) -> None:
    for name in ("amdsmi_get_violation_status", "amdsmi_get_gpu_total_ecc_count", "amdsmi_get_gpu_bad_page_info"):
        smi.answers[name] = AmdSmiLibraryException(amd.NOT_SUPPORTED)
    smi.answers["amdsmi_get_power_info"] = {"current_socket_power": "N/A", "average_socket_power": 210}
    smi.answers["amdsmi_get_temp_metric"] = AmdSmiLibraryException(amd.NOT_SUPPORTED)
    (samples,) = collector.collect(0)
    values = row(samples)
    unknown = {"temperature_c", "throttle_reasons", "ecc_uncorrected_volatile", "retired_pages_uncorrected"}
    assert all(math.isnan(values[name]) for name in unknown) and values["power_w"] == 210
    smi.calls.clear()
    collector.collect(1)
    assert "amdsmi_get_violation_status" not in smi.calls, "what is not supported is not asked for each second"


def test_a_card_that_is_hot_is_slowed(smi: Smi, collector: AmdGpuCollector) -> None:
    smi.answers["amdsmi_get_violation_status"] = {"active_hbm_thrm": True, "active_prochot_thrm": False}
    (samples,) = collector.collect(0)
    assert row(samples)["throttle_reasons"] == 0x40


def test_a_lost_card_is_an_alarm_until_it_answers(smi: Smi, collector: AmdGpuCollector, reported: Reported) -> None:
    collector.collect(0)
    known = dict(smi.answers)
    for name in known:
        if name.startswith("amdsmi_get"):
            smi.answers[name] = AmdSmiLibraryException(31)
    for step in (1, 2):
        (samples,) = collector.collect(step)
        values = row(samples)
        assert values["present"] == 0 and math.isnan(values["temperature_c"])
    ((message, data),) = reported.of("gpu_lost")
    assert "AMD Instinct MI300X cuda:0" in message and data["uuid"] == MI300X
    smi.answers.update(known)
    (samples,) = collector.collect(3)
    assert row(samples)["present"] == 1 and "answers again" in reported.of("gpu")[-1][0]


def test_new_errors_of_its_memory_are_an_event(
    smi: Smi, collector: AmdGpuCollector, reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amd, "SLOW_EVERY_S", 0.0)
    collector.collect(0)
    smi.answers["amdsmi_get_gpu_total_ecc_count"] = {"correctable_count": 3, "uncorrectable_count": 2}
    collector.collect(1)
    collector.collect(2)
    ((message, data),) = reported.of("gpu")
    assert "uncorrectable memory errors" in message and "(0 -> 2)" in message
    assert data == {"uuid": MI300X, "column": "ecc_uncorrected_volatile"}


def test_without_rocm_it_does_nothing(monkeypatch: pytest.MonkeyPatch, reported: Reported) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    made = AmdGpuCollector(Options(), info("cpu"))
    made.start(reported)
    assert made.collect(0) == () and not reported.events


def test_without_its_package_it_says_so_once(smi: Smi, reported: Reported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    made = AmdGpuCollector(Options(), info("AMD Instinct MI300X"))
    made.start(reported)
    assert made.collect(0) == () == made.collect(1)
    ((message, _),) = reported.of("gpu")
    assert "install the package amdsmi" in message


def test_nvml_is_left_alone_on_rocm(smi: Smi, reported: Reported) -> None:
    made = GpuCollector(Options(), info("AMD Instinct MI300X"))
    made.start(reported)
    assert made.collect(0) == () and not reported.events


@pytest.mark.parametrize(("device", "who"), [("xpu", "Intel"), ("mps", "Apple")])
def test_of_other_devices_it_is_said_what_is_not_measured(device: str, who: str, reported: Reported) -> None:
    made = GpuCollector(Options(), info(device))
    made.start(reported)
    assert made.collect(0) == ()
    ((message, _),) = reported.of("gpu")
    assert who in message and "temperature, clocks and power are not" in message
