"""The host's health: against this host, against made-up /proc trees, and where there is none."""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rangewatch.collectors import host
from rangewatch.collectors import host as host_proc
from rangewatch.collectors.host import HostCollector
from rangewatch.core.options import Options
from tests.agent.collectors.conftest import Reported, info, row

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


def _collector(reported: Reported, **roots: Path) -> HostCollector:
    collector = HostCollector(Options(), info(), **roots)
    collector.start(reported)
    return collector


def _write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@linux
def test_this_host(reported: Reported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "PATIENCE_S", 20.0)
    collector = _collector(reported)
    collector.collect(3)
    (samples,) = collector.collect(4)
    found = row(samples)
    collector.stop()
    assert (samples.source, samples.key, found["step"]) == ("host", "", 4)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found["memory_total_bytes"] == pytest.approx(total, rel=0.05)
    assert 0 < found["memory_used_bytes"] < found["memory_total_bytes"]
    assert 0 < found["process_rss_bytes"] < found["memory_total_bytes"]
    assert found["disk_cwd_total_bytes"] == shutil.disk_usage(".").total
    assert found["process_open_files"] >= 3
    assert found["load_1m"] >= 0
    assert samples.about["cpus"] >= samples.about["cpus_of_process"] > 0


def test_open_files_are_counted(tmp_path: Path) -> None:
    _write(tmp_path, self__fd__0="", self__fd__7="", self__status="Name:\tpython\nVmRSS:\t    2048 kB\n")
    assert host_proc.process(tmp_path) == {"process_rss_bytes": 2048 * 1024, "process_open_files": 2}


def test_rates_and_shares(reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ns = iter(range(0, 10**12, 10**9))
    tick = [0]
    monkeypatch.setattr("rangewatch.collectors.host.time.monotonic_ns", lambda: tick[0])
    collector = _collector(reported, proc=tmp_path / "proc", sys=tmp_path / "sys")
    for seconds in (0, 2):
        tick[0] = next(clock_ns) * 2
        _write(
            tmp_path / "proc",
            stat=f"cpu  {100 + 60 * seconds} 0 0 {500 + 30 * seconds} {10 * seconds} 0 0 0 50 0\ncpu0 1 1 1 1\n",
            vmstat=f"pgpgin 9\npswpin {seconds}\npswpout {3 * seconds}\n",
            net__dev="Inter-| Receive | Transmit\n face |bytes packets|bytes\n"
            f"    lo: {9 * seconds} 0 0 0 0 0 0 0 {9 * seconds} 0\n"
            f"  eth0: {1000 * seconds} 0 0 0 0 0 0 0 {500 * seconds} 0\n"
            f" bond0:{1000 * seconds} 0 0 0 0 0 0 0 {500 * seconds} 0\n",
        )
        _write(tmp_path / "sys", class__net__eth0__device="", **_port(1, 100 * seconds), **_port(2, 20 * seconds))
        found = row(collector.collect(0)[0])
        if not seconds:
            assert math.isnan(found["cpu_percent"]) and math.isnan(found["network_sent_bytes_per_s"])
    collector.stop()
    assert (found["cpu_percent"], found["cpu_iowait_percent"]) == (60, 10)
    assert found["swap_out_bytes_per_s"] == 3 * os.sysconf("SC_PAGE_SIZE")
    assert (found["network_received_bytes_per_s"], found["network_sent_bytes_per_s"]) == (1000, 500)
    assert found["infiniband_received_bytes_per_s"] == 120 * 4


def _port(number: int, words: int) -> dict[str, str]:
    folder = f"class__infiniband__mlx5_0__ports__{number}__counters__"
    return {folder + "port_rcv_data": f"{words}\n", folder + "port_xmit_data": f"{words}\n"}


def test_the_tightest_limit_of_a_container(tmp_path: Path) -> None:
    proc, sys_ = tmp_path / "proc", tmp_path / "sys"
    _write(proc, self__cgroup="0::/a/b\n")
    _write(sys_, fs__cgroup__a__b__memory_max="", fs__cgroup__memory_pressure="")
    for folder, used, limit in (("a/b", 10, "max"), ("a", 70, "100"), ("", 500, "900")):
        (sys_ / "fs/cgroup" / folder / "memory.current").write_text(f"{used}\n")
        (sys_ / "fs/cgroup" / folder / "memory.max").write_text(f"{limit}\n")
    expected = {"container_memory_used_bytes": 70, "container_memory_limit_bytes": 100}
    assert host_proc.memory_limit(proc, sys_) == expected
    (sys_ / "fs/cgroup/a/memory.max").write_text("max\n")
    assert host_proc.memory_limit(proc, sys_)["container_memory_limit_bytes"] == 900


@pytest.mark.parametrize("text", ["", "cpu\n", "nonsense\x00\n", "cpu  a b c\n"])
def test_unreadable_files_are_not_a_fault(reported: Reported, tmp_path: Path, text: str) -> None:
    _write(tmp_path, **dict.fromkeys(("stat", "meminfo", "vmstat", "loadavg", "net__dev", "self__status"), text))
    collector = _collector(reported, proc=tmp_path, sys=tmp_path)
    for _ in range(2):
        assert math.isnan(row(collector.collect(0)[0])["cpu_percent"])
    collector.stop()


def test_without_proc(reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "PATIENCE_S", 20.0)
    collector = _collector(reported, proc=tmp_path / "none", sys=tmp_path / "none")
    found = row(collector.collect(1)[0])
    collector.stop()
    known = {name for name, value in found.items() if not math.isnan(value)}
    assert {"step", "disk_cwd_free_bytes"} <= known <= {name for name in found if name.startswith(("step", "disk"))}
    assert reported.events == []


def test_a_removed_working_directory(reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    collector = _collector(reported)
    collector.collect(0)
    collector.stop()


def test_a_hung_file_system_holds_nothing_up(
    reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "DISK_EVERY_S", 0.0)
    monkeypatch.setattr(host, "PATIENCE_S", 20.0)
    collector = _collector(reported)
    assert row(collector.collect(0)[0])["disk_cwd_free_bytes"] > 0
    is_back = threading.Event()
    real = shutil.disk_usage

    def hangs(path: Any) -> Any:
        if path == Path("/dev/shm"):
            is_back.wait(30)
        return real(tmp_path)

    monkeypatch.setattr(shutil, "disk_usage", hangs)
    monkeypatch.setattr(host, "SILENCE_S", 0.0)
    monkeypatch.setattr(host, "PATIENCE_S", 0.0)
    rows = [row(collector.collect(step)[0]) for step in range(3)]
    assert all(math.isnan(each["disk_cwd_free_bytes"]) for each in rows)
    assert all(each["memory_total_bytes"] > 0 for each in rows)
    ((message, data),) = reported.of("host")
    assert data["path"] == "/dev/shm"
    assert "has not answered" in message
    is_back.set()
    monkeypatch.setattr(host, "PATIENCE_S", 20.0)
    collector.collect(9)  # may still be the answer to the old question
    while collector._disks.is_busy:
        collector.collect(9)
    assert row(collector.collect(10)[0])["disk_shm_total_bytes"] > 0
    collector.stop()


def test_a_device_that_comes_is_no_spike_and_one_that_starts_again_hides_none(
    reported: Reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = [0]
    monkeypatch.setattr("rangewatch.collectors.host.time.monotonic_ns", lambda: second[0] * 10**9)
    collector = _collector(reported, proc=tmp_path, sys=tmp_path)
    received: dict[str, list[int | None]] = {"eth0": [1000, 2000, 50], "eth1": [None, 9 * 10**12, 9 * 10**12 + 500]}
    rates = []
    for second[0] in range(3):
        known = {name: values[second[0]] for name, values in received.items()}
        lines = [f"{name}: {value} 0 0 0 0 0 0 0 7 0" for name, value in known.items() if value is not None]
        _write(tmp_path, net__dev="\n".join(lines))
        rates.append(row(collector.collect(0)[0])["network_received_bytes_per_s"])
    collector.stop()
    assert math.isnan(rates[0])
    assert rates[1:] == [1000, 500]


def test_what_is_known_of_devices_that_have_gone_is_forgotten(reported: Reported, tmp_path: Path) -> None:
    collector = _collector(reported, proc=tmp_path, sys=tmp_path)
    for number in range(50):
        _write(tmp_path, net__dev=f"veth{number}: 1 0 0 0 0 0 0 0 7 0\n")
        collector.collect(0)
    collector.stop()
    assert len([name for name in collector._differences._last if "veth" in name]) == 2


def test_a_file_system_that_does_not_say_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(value > 0 for value in host._room(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0, total=0))
    assert all(math.isnan(value) for value in host._room(tmp_path))


def test_the_quota_of_a_container_is_a_fact(reported: Reported, tmp_path: Path) -> None:
    _write(tmp_path / "proc", self__cgroup="0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("150000 100000\n")
    collector = _collector(reported, proc=tmp_path / "proc", sys=tmp_path / "sys")
    (samples,) = collector.collect(0)
    collector.stop()
    assert samples.about["cpu_quota"] == 1.5
