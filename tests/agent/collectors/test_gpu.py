"""GPU health as NVML tells it: values and units, what is not supported, and which card is this rank's."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from rangewatch.collectors.gpu import devices
from rangewatch.collectors.gpu.collector import GpuCollector
from rangewatch.collectors.host import HostCollector
from rangewatch.core.options import Options
from tests import forked
from tests.agent.collectors.conftest import H100, SECOND_H100, Collecting, Driver, Reported, info, row


def test_values_and_units(driver: Driver, collecting: Collecting) -> None:
    (samples,) = collecting().collect(7)
    assert (samples.source, samples.key) == ("gpu", H100)
    expected = {
        "step": 7,
        "present": 1,
        "utilization_gpu_percent": 97,
        "utilization_memory_percent": 41,
        "memory_used_bytes": 73033318400,
        "memory_total_bytes": 85520809984,
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 2619,
        "power_w": pytest.approx(688.43),
        "power_limit_w": 700,
        "temperature_c": 64,
        "temperature_memory_c": 76,
        "slowdown_margin_c": 24,
        "shutdown_margin_c": 30,
        "throttle_reasons": 4,
        "ecc_corrected_volatile": 3,
        "ecc_corrected_aggregate": 12,
        "ecc_uncorrected_volatile": 0,
        "ecc_uncorrected_aggregate": 1,
        "remapped_rows_uncorrected": 1,
        "remapped_rows_failure": 0,
        "pcie_replays": 0,
        "pcie_link_generation": 5,
        "pcie_link_width": 16,
        "nvlink_links": 18,
        "nvlink_active_links": 18,
        "nvlink_active_mask": 2**18 - 1,
        "nvlink_replay_errors": 0,
        "nvlink_17_errors": 0,
        "fabric_state": 3,
        "recovery_action": 0,
        "processes": 0,
    }
    assert {name: row(samples)[name] for name in expected} == expected


def test_facts_are_json(driver: Driver, collecting: Collecting) -> None:
    (samples,) = collecting().collect(0)
    about = msgspec.json.decode(msgspec.json.encode(samples.about))
    assert about["name"] == "NVIDIA H100 80GB HBM3"
    assert about["pci_bus_id"] == "00000000:1B:00.0"
    assert about["driver_version"] == "580.159.04"
    assert about["maxima"]["sm_clock_mhz"] == 1980
    assert about["limits"] == {"shutdown_tlimit_c": -8, "slowdown_tlimit_c": -2}
    assert about["names"]["throttle_reasons"]["64"] == "hw_thermal_slowdown"
    assert "1" not in about["names"]["throttle_reasons"]


def test_only_slowing_reasons_are_throttle_reasons(driver: Driver, collecting: Collecting) -> None:
    collector = collecting()
    for said, slowing in ((0x1, 0), (0x2 | 0x100, 0), (0x8 | 0x40 | 0x1, 0x48), (0x80, 0x80), (0x20 | 0x4, 0x24)):
        driver.say(f"0 nvmlDeviceGetCurrentClocksEventReasons {said:#x}")
        found = row(collector.collect(0)[0])
        assert (found["clocks_event_reasons"], found["throttle_reasons"]) == (said, slowing)


def test_violation_times_are_differences(driver: Driver, collecting: Collecting) -> None:
    collector = collecting()
    assert math.isnan(row(collector.collect(0)[0])["violation_power_ns"])
    driver.say("0 nvmlDeviceGetViolationStatus(0) 81250000000")
    found = row(collector.collect(1)[0])
    assert (found["violation_power_ns"], found["violation_thermal_ns"]) == (250_000_000, 0)
    driver.say("0 nvmlDeviceGetViolationStatus(0) 5")  # the driver was loaded anew
    assert math.isnan(row(collector.collect(2)[0])["violation_power_ns"])


def test_not_supported_is_never_zero(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    driver.load("geforce")
    found = row(collecting().collect(0)[0])
    assert found["memory_used_bytes"] == 20401094656
    assert (found["temperature_c"], found["slowdown_margin_c"], found["shutdown_margin_c"]) == (71, 24, 27)
    assert found["throttle_reasons"] == 0x24
    missing = ["temperature_memory_c", "violation_power_ns", "ecc_corrected_volatile", "remapped_rows_pending"]
    missing += ["retired_pages_pending", "nvlink_links", "nvlink_replay_errors", "fabric_state", "recovery_action"]
    assert all(math.isnan(found[name]) for name in missing)
    assert reported.of("gpu_lost") == []


@pytest.mark.parametrize("code", [3, 999, *(pytest.param(code, marks=pytest.mark.slow) for code in (4, 13))])
@pytest.mark.parametrize("name", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows"])
def test_one_function_that_fails_hides_nothing_else(
    driver: Driver, collecting: Collecting, reported: Reported, name: str, code: int
) -> None:
    whole = row(collecting().collect(0)[0])
    driver.say(f"0 {name} !{code}")
    found = row(collecting().collect(0)[0])
    assert found["present"] == 1
    assert set(whole) == set(found)
    known = {key for key in whole if not math.isnan(whole[key])}
    lost = {key for key in known if math.isnan(found[key])}
    assert name == "nvmlDeviceGetFieldValues" or 0 < len(lost) <= 4
    assert {key: found[key] for key in known - lost} == {key: whole[key] for key in known - lost}
    assert reported.of("gpu_lost") == []


def test_mig_instance(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    driver.load("h100_mig")
    uuid = "MIG-c0ffee00-0000-4000-8000-0000000000c0"
    collector = collecting(CUDA_VISIBLE_DEVICES=uuid)
    (samples,) = collector.collect(0)
    found = row(samples)
    assert samples.key == uuid
    assert samples.about["parent_uuid"] == H100
    assert samples.about["pci_bus_id"] == "00000000:1B:00.0"
    assert (found["present"], found["memory_used_bytes"]) == (1, 3384803328)
    assert math.isnan(found["power_w"]) and math.isnan(found["utilization_gpu_percent"])
    driver.say("0 event 8 43 2", "0 event 8 94 1")  # somebody else's instance, and ours
    assert [data["xid"] for _, data in reported.wait_for("xid")] == [94]


def test_a_number_on_a_cut_up_card_is_its_first_instance(driver: Driver, collecting: Collecting) -> None:
    driver.load("h100_mig")
    (samples,) = collecting(CUDA_VISIBLE_DEVICES="0").collect(0)
    assert samples.key == "MIG-c0ffee00-0000-4000-8000-0000000000c0"


@pytest.mark.parametrize(
    ("visible", "local_rank", "uuid"),
    [
        (f"{SECOND_H100},{H100}", 0, SECOND_H100),
        (f"{SECOND_H100},{H100}", 1, H100),
        (SECOND_H100, 3, SECOND_H100),
        ("GPU-9b2f", 0, SECOND_H100),
        ("1,0", 0, SECOND_H100),
        ("1", 5, SECOND_H100),
        (None, 1, SECOND_H100),
    ],
)
def test_card_by_the_launcher(
    driver: Driver, collecting: Collecting, visible: str | None, local_rank: int, uuid: str
) -> None:
    driver.load("h100_pair")
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    (samples,) = collecting(info(local_rank=local_rank), **environment).collect(0)
    assert samples.key == uuid
    assert samples.about["mapped_by"] != "torch"


@pytest.mark.parametrize("visible", ["", "-1", "GPU-", "GPU-00000000", "0,1", "gpu0"])
def test_no_card_is_guessed(driver: Driver, collecting: Collecting, reported: Reported, visible: str) -> None:
    driver.load("h100_pair")
    collector = collecting(info(local_rank=2), CUDA_VISIBLE_DEVICES=visible)
    assert [*collector.collect(0), *collector.collect(1)] == []
    ((message, _),) = reported.of("gpu")
    assert "CUDA_VISIBLE_DEVICES" in message


def test_cards_of_two_kinds_wait_for_cuda(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    driver.load("h100_pair")
    driver.say("1 nvmlDeviceGetName NVIDIA L4")
    assert collecting().collect(0) == []
    assert "waiting for CUDA" in reported.of("gpu")[0][0]
    assert [each.key for each in collecting(CUDA_DEVICE_ORDER="PCI_BUS_ID").collect(0)] == [H100]


class RunningCuda:
    """`torch.cuda` of a process in which CUDA runs."""

    def __init__(self, memory: list[int], **properties: Any) -> None:
        self.memory, self.properties = memory, properties

    def device_count(self) -> int:
        return len(self.memory)

    def memory_reserved(self, index: int) -> int:
        return self.memory[index]

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(**{name: values[index] for name, values in self.properties.items()})


def test_torch_corrects_the_launcher(
    driver: Driver, collecting: Collecting, monkeypatch: pytest.MonkeyPatch, reported: Reported
) -> None:
    driver.load("h100_pair")
    collector = collecting()
    assert [each.key for each in collector.collect(0)] == [H100]
    uuids = [H100.removeprefix("GPU-"), SECOND_H100.removeprefix("GPU-")]
    # CUDA's number 1 is NVML's 1 here, but a stray tensor is on 0, which is not this rank's.
    running = RunningCuda([2 << 20, 40 << 30], uuid=uuids)
    monkeypatch.setattr(devices, "cuda", lambda: running)
    last, samples = collector.collect(1)
    assert (last.key, samples.key) == (H100, SECOND_H100)
    assert (samples.about["mapped_by"], samples.about["device_index"]) == ("torch", 1)
    running.memory = [30 << 30, 40 << 30]  # a model over two cards
    assert [each.key for each in collector.collect(2)] == [H100, SECOND_H100]
    assert reported.of("gpu_lost") == []


def test_old_torch_tells_the_bus(driver: Driver, collecting: Collecting, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.load("h100_pair")
    places = {"pci_domain_id": [0, 0], "pci_bus_id": [0x43, 0x1B], "pci_device_id": [0, 0]}
    monkeypatch.setattr(devices, "cuda", lambda: RunningCuda([1 << 30, 0], **places))
    assert [each.key for each in collecting().collect(0)] == [SECOND_H100]
    monkeypatch.setattr(devices, "cuda", lambda: RunningCuda([1 << 30, 0]))  # neither
    assert [each.key for each in collecting().collect(0)] == [H100]


def test_cuda_is_never_started(driver: Driver, collecting: Collecting) -> None:
    collecting().collect(0)
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def test_training_on_a_cpu_opens_no_driver(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    assert collecting(info("cpu")).collect(0) == ()
    assert reported.events == []
    assert len(collecting(info("cpu"), CUDA_VISIBLE_DEVICES=H100).collect(0)) == 1


def test_processes_by_name_and_by_number(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    hidden = 4_000_000  # above the highest process id
    driver.say(f"0 nvmlDeviceGetComputeRunningProcesses {os.getpid()} 1000 {os.getppid()} 500 {hidden} 20")
    found = row(collecting().collect(0)[0])
    assert (found["processes"], found["processes_hidden"], found["processes_memory_bytes"]) == (3, 1, 1520)
    ((message, data),) = reported.of("gpu")
    assert "shared" in message
    assert [each["pid"] for each in data["processes"]] == [os.getppid()]


def test_ids_of_another_namespace_name_nobody(
    driver: Driver, collecting: Collecting, reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rangewatch.collectors.gpu.readings._HOST_NAMESPACE", "pid:[1]")
    driver.say("0 nvmlDeviceGetComputeRunningProcesses 1 1000 2 500")  # of the host; here 1 is somebody else
    found = row(collecting().collect(0)[0])
    assert (found["processes"], found["processes_hidden"]) == (2, 2)
    assert reported.events == []


def test_changes_of_slow_readings_are_told(driver: Driver, collecting: Collecting, reported: Reported) -> None:
    collector = collecting()
    collector.collect(0)
    driver.say("0 nvmlDeviceGetNvLinkState(3) 0", "0 nvmlDeviceGetNvLinkErrorCounter(5,2) 9", "0 field(230) 1 4")
    driver.say("0 nvmlDeviceGetTotalEccErrors(1,0) 2", "0 nvmlDeviceGetRemappedRows 0 1 1 0")
    found = row(collector.collect(1)[0])
    assert (found["nvlink_active_links"], found["nvlink_05_errors"], found["nvlink_crc_flit_errors"]) == (17, 9, 9)
    text = "\n".join(message for message, _ in reported.of("gpu"))
    for part in (
        "NVLink 3 went down",
        "9 errors on NVLink 5",
        "drain the node, then reset",
        "(0 -> 2)",
        "row remapping",
    ):
        assert part in text
    assert len(reported.events) == 5
    collector.collect(2)
    assert len(reported.events) == 5


def test_package_not_installed(reported: Reported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    collector = GpuCollector(None, info(), {})  # type: ignore[arg-type]
    collector.start(reported)
    assert [collector.collect(0), collector.collect(1)] == [(), ()]
    collector.stop()
    ((kind, message, _),) = reported.events
    assert kind == "gpu"
    assert "nvidia-ml-py" in message


_IN_A_PROCESS = """
import json
from rangewatch.collectors.gpu.collector import GpuCollector
from rangewatch.collectors.host import HostCollector
from rangewatch.core.options import Options
from rangewatch.wire.records import RankInfo
from tests.agent.doubles import EventList
told = EventList()
events = told.events
collector = GpuCollector(None, RankInfo("run", 0, 1, 0, "host", "i", 0, device="cuda"))
collector.start(told)
keys = [samples.key for _ in range(2) for samples in collector.collect(0)]
collector.stop()
print(json.dumps([keys, [event[:2] for event in events]]))
"""


def _in_a_process(**environment: str) -> Any:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "LD_LIBRARY"))}
    program = ["-c", _IN_A_PROCESS]
    options: dict[str, Any] = {"env": kept | environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # The loader reads its variable as Python starts.
    started = (
        subprocess.Popen([sys.executable, *program], **options)
        if environment
        else forked.rank.start(*program, **options)
    )
    out, err = started.communicate(timeout=60)
    assert (started.returncode, err) == (0, b"")
    return msgspec.json.decode(out)


@pytest.mark.slow
def test_found_as_the_loader_finds_it(library: Path, driver: Driver) -> None:
    keys, events = _in_a_process(LD_LIBRARY_PATH=str(library.parent), NVML_DOUBLE=str(driver.path))
    assert (keys, events) == ([H100, H100], [])


@pytest.mark.skipif(Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").exists(), reason="this host has a driver")
def test_no_driver_library() -> None:
    keys, events = _in_a_process()
    assert keys == []
    ((kind, message),) = events
    assert kind == "gpu"
    assert "no NVIDIA driver" in message


def test_every_column_is_documented(driver: Driver, collecting: Collecting) -> None:
    page = (Path(__file__).parents[3] / "docs" / "gpu_health.md").read_text()
    collector = HostCollector(Options(), info())
    columns = [*collector.collect(0)[0].columns, *collecting().collect(0)[0].columns]
    collector.stop()
    links = {f"nvlink_{link:02}_errors" for link in range(1, 36)}
    totals = {"disk_cwd_total_bytes", "disk_tmp_total_bytes", "disk_shm_total_bytes"}
    assert [name for name in columns if f"`{name}`" not in page and name not in links | totals] == []
