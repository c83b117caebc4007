"""What is read off a card: load, power, clocks and temperature every second, a few tens of calls of some microseconds
each; errors and links every 30 s; and who else is on it.

Left out, with reason: `nvmlDeviceGetPcieThroughput`, which measures for 20 ms a call (the byte counters below cost
nothing), and the counters of single clocks event reasons, whose field ids differ between drivers.

Counters are as NVML holds them (`volatile`: since the driver was loaded; `aggregate`: in the card's life), so that what
was there before the run can be told from what came in it.

NVML tells process ids of the host. In a container they name nothing, or another process, so an id is only looked up
when the ids are known to be ours: this process is among them, or it lives in the host's own namespace of ids.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from rangewatch.collectors.gpu.nvml import NOT_FOUND, THROTTLE_MASK, VIOLATIONS, NvmlError, Reader

_MEMORY_TEMPERATURE, _PCIE_SENT, _PCIE_RECEIVED = 82, 197, 198
_SHUTDOWN_TLIMIT, _SLOWDOWN_TLIMIT = 193, 194
_FAST_FIELDS = (_MEMORY_TEMPERATURE, _PCIE_SENT, _PCIE_RECEIVED)
_SHUTDOWN, _SLOWDOWN = 0, 1
_SM, _MEMORY = 1, 2

Row = dict[str, float]


class Differences:
    """Growth of counters since they were last read: NaN at first, after a gap and when a counter starts again."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}

    def of(self, name: str, value: float) -> float:
        """How much `name` has grown."""
        return self._grown(name, 0, value)[0]

    def rate(self, name: str, time_ns: int, value: float) -> float:
        """How much it has grown a second."""
        grown, elapsed_ns = self._grown(name, time_ns, value)
        return grown * 1e9 / elapsed_ns if elapsed_ns > 0 else math.nan

    def forget(self) -> None:
        """There is a gap."""
        self._last.clear()

    def keep(self, prefix: str, names: Collection[str]) -> None:
        """Forget the counters called `prefix`... that are not in `names`: those of devices that have gone."""
        gone = [name for name in self._last if name.startswith(prefix) and name not in names]
        for name in gone:
            del self._last[name]

    def _grown(self, name: str, time_ns: int, value: float) -> tuple[float, int]:
        last_ns, last = self._last.get(name, (0, math.nan))
        self._last[name] = (time_ns, value)
        return (value - last if value >= last else math.nan), time_ns - last_ns


class FastReadings:
    """The rows of one card, and what the next row needs to know of the last."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._differences = reader, Differences()
        self.limits = margins_at(reader)
        """Temperature limits, in degrees C: `slowdown_c` and `shutdown_c`, or the same as margins below T.Limit."""

    def row(self, time_ns: int) -> Row:
        """One row. Raises NvmlError when the card or the driver is gone."""
        read = self._reader
        memory_c, sent, received = read.fields(_FAST_FIELDS)
        load = read.value("nvmlDeviceGetUtilizationRates")
        # As nvidia-smi: the second version counts the driver's own reserve as not used.
        version = getattr(read.nvml.module, "nvmlMemory_v2", None)
        memory = read.value("nvmlDeviceGetMemoryInfo", version) if version else None
        if memory is None:
            memory = read.value("nvmlDeviceGetMemoryInfo")
        now_c, room_c = read.number("nvmlDeviceGetTemperatureV", 0), read.number("nvmlDeviceGetMarginTemperature")
        if math.isnan(now_c):  # deprecated, and the only one in old drivers
            now_c = read.number("nvmlDeviceGetTemperature", 0)
        reasons = read.value("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = read.value("nvmlDeviceGetCurrentClocksThrottleReasons")
        return {
            "utilization_gpu_percent": math.nan if load is None else float(load.gpu),
            "utilization_memory_percent": math.nan if load is None else float(load.memory),
            "memory_used_bytes": math.nan if memory is None else float(memory.used),
            "memory_total_bytes": math.nan if memory is None else float(memory.total),
            "power_w": read.number("nvmlDeviceGetPowerUsage", scale=1e-3),
            "power_limit_w": read.number("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
            "temperature_c": now_c,
            "temperature_memory_c": memory_c,
            "slowdown_margin_c": self._margin("slowdown", now_c, room_c),
            "shutdown_margin_c": self._margin("shutdown", now_c, room_c),
            "sm_clock_mhz": read.number("nvmlDeviceGetClockInfo", _SM),
            "memory_clock_mhz": read.number("nvmlDeviceGetClockInfo", _MEMORY),
            "clocks_event_reasons": math.nan if reasons is None else float(reasons),
            "throttle_reasons": math.nan if reasons is None else float(int(reasons) & THROTTLE_MASK),
            **{f"violation_{name}_ns": self._violation(name, number) for name, number in VIOLATIONS.items()},
            "pcie_sent_bytes_per_s": self._differences.rate("pcie_sent", time_ns, sent),
            "pcie_received_bytes_per_s": self._differences.rate("pcie_received", time_ns, received),
        }

    def forget(self) -> None:
        """Rows are missing before the next one."""
        self._differences.forget()

    def _margin(self, limit: str, now_c: float, room_c: float) -> float:
        # Since Ada the limits are told as distances from the highest operating temperature, and usually negative.
        below_c = self.limits.get(f"{limit}_tlimit_c", math.nan)
        if not math.isnan(room_c - below_c):
            return room_c - below_c
        return self.limits.get(f"{limit}_c", math.nan) - now_c

    def _violation(self, name: str, number: int) -> float:
        violation = self._reader.value("nvmlDeviceGetViolationStatus", number)
        return math.nan if violation is None else self._differences.of(name, float(violation.violationTime))


def margins_at(reader: Reader) -> Row:
    """The temperature limits of a card that it has, by name."""
    shutdown_c, slowdown_c = reader.fields((_SHUTDOWN_TLIMIT, _SLOWDOWN_TLIMIT))
    margins = {
        "shutdown_tlimit_c": shutdown_c,
        "slowdown_tlimit_c": slowdown_c,
        "shutdown_c": reader.number("nvmlDeviceGetTemperatureThreshold", _SHUTDOWN),
        "slowdown_c": reader.number("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
    }
    return {name: value for name, value in margins.items() if not math.isnan(value)}


def nothing_answered(reader: Reader) -> NvmlError | None:
    """Why a whole look at a card gave nothing, which is a lost card whatever the single errors were called."""
    if reader.answered:
        return None
    return reader.error or NvmlError(NOT_FOUND, "nothing about this card can be read any more")


_RETIRED_CORRECTED, _RETIRED_UNCORRECTED, _RETIRED_PENDING = 29, 30, 31
_LINK_COUNT, _RECOVERY_ACTION = 91, 230
_SLOW_FIELDS = (_RETIRED_CORRECTED, _RETIRED_UNCORRECTED, _RETIRED_PENDING, _RECOVERY_ACTION, _LINK_COUNT)
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1

_LINK_COUNTERS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc_data": 4}
"""Up to Hopper, by `nvmlDeviceGetNvLinkErrorCounter`."""

_PACKET_FIELDS = (206, 207, 208, 209, 210, 211)
"""From Blackwell on, by field and link: malformed, overruns, received in error (own, remote, general), integrity."""

_RECOVERY_FIELD = 215
_MAX_LINKS = 36


def slow_row(reader: Reader) -> Row:
    """One row. Raises NvmlError when the card or the driver is gone."""
    corrected, uncorrected, pending, recovery_action, links = reader.fields(_SLOW_FIELDS)
    return {
        **_ecc(reader),
        **_remapped(reader),
        "retired_pages_corrected": corrected,
        "retired_pages_uncorrected": uncorrected,
        "retired_pages_pending": pending,
        "pcie_replays": reader.number("nvmlDeviceGetPcieReplayCounter"),
        "pcie_link_generation": reader.number("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_link_width": reader.number("nvmlDeviceGetCurrPcieLinkWidth"),
        "recovery_action": recovery_action,
        **_fabric(reader),
        **_links(reader, links),
    }


def _ecc(reader: Reader) -> Row:
    row = {}
    for kind, name in ((_CORRECTED, "corrected"), (_UNCORRECTED, "uncorrected")):
        for since, word in ((_VOLATILE, "volatile"), (_AGGREGATE, "aggregate")):
            row[f"ecc_{name}_{word}"] = reader.number("nvmlDeviceGetTotalEccErrors", kind, since)
    return row


def _remapped(reader: Reader) -> Row:
    names = ("corrected", "uncorrected", "pending", "failure")
    counts = reader.value("nvmlDeviceGetRemappedRows") or [math.nan] * len(names)
    return {f"remapped_rows_{name}": float(value) for name, value in zip(names, counts, strict=True)}


def _fabric(reader: Reader) -> Row:
    structure = getattr(reader.nvml.module, "c_nvmlGpuFabricInfoV_t", None)
    info = structure() if structure else None
    if info is None or not reader.filled("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info)):
        return dict.fromkeys(("fabric_state", "fabric_status", "fabric_health_mask"), math.nan)
    return {
        "fabric_state": float(info.state),
        "fabric_status": float(info.status),
        "fabric_health_mask": float(info.healthMask),
    }


def _links(reader: Reader, count: float) -> Row:
    """All links together, and each link's errors of all kinds as `nvlink_00_errors`, ..."""
    states = _states(reader, count)
    errors = {link: _link_errors(reader, link) for link in states}
    is_known = bool(states) and not any(map(math.isnan, states.values()))
    row = {
        "nvlink_links": float(len(states)) if states else (0.0 if count == 0 else math.nan),
        "nvlink_active_mask": float(sum(1 << link for link in states if states[link])) if is_known else math.nan,
        "nvlink_active_links": float(sum(map(bool, states.values()))) if is_known else math.nan,
    }
    for name in (*_LINK_COUNTERS, "packet"):
        row[f"nvlink_{name}_errors"] = total(each[name] for each in errors.values())
    return row | {f"nvlink_{link:02}_errors": total(each.values()) for link, each in errors.items()}


def _states(reader: Reader, count: float) -> dict[int, float]:
    """Each link's, NaN for one whose question failed: that is not a link that is down, nor the end of the links."""
    states: dict[int, float] = {}
    is_counted = not math.isnan(count)
    for link in range(min(int(count), _MAX_LINKS) if is_counted else _MAX_LINKS):
        state = reader.number("nvmlDeviceGetNvLinkState", link)
        if math.isnan(state) and (not is_counted or reader.is_absent("nvmlDeviceGetNvLinkState", link)):
            break  # links are numbered without gaps: there are no more
        states[link] = state
    return states


def _link_errors(reader: Reader, link: int) -> Row:
    row = {
        name: reader.number("nvmlDeviceGetNvLinkErrorCounter", link, number) for name, number in _LINK_COUNTERS.items()
    }
    row["packet"] = math.nan
    if math.isnan(total(row.values())):
        recovery, *packets = reader.fields([(field, link) for field in (_RECOVERY_FIELD, *_PACKET_FIELDS)])
        row["recovery"], row["packet"] = recovery, total(packets)
    return row


def total(values: Iterable[float]) -> float:
    """The sum of what is known; NaN where nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) if known else math.nan


_HOST_NAMESPACE = "pid:[4026531836]"
"""The kernel's own number for the first namespace of process ids (PROC_PID_INIT_INO)."""

_PROCESSES_NAMED = 16


class CardProcesses:
    """What the last look found."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self.others: list[dict[str, Any]] = []
        """Other processes: `pid` and `memory_bytes`, and `command` where it is known."""
        self.hidden = 0
        """Processes that are not in this container."""

    def row(self, reader: Reader) -> Row:
        """One row. Raises NvmlError when the card or the driver is gone."""
        processes = reader.value("nvmlDeviceGetComputeRunningProcesses")
        self.others, self.hidden = [], 0
        if processes is None:
            return dict.fromkeys(("processes", "processes_hidden", "processes_memory_bytes"), math.nan)
        self._sort_out(processes)
        used = [each.usedGpuMemory for each in processes if each.usedGpuMemory is not None]
        return {
            "processes": float(len(processes)),
            "processes_hidden": float(self.hidden),
            "processes_memory_bytes": float(sum(used)) if used or not processes else math.nan,
        }

    def _sort_out(self, processes: list[Any]) -> None:
        pids = {int(each.pid) for each in processes}
        are_ours = os.getpid() in pids or self._is_host()
        for each in processes:
            pid = int(each.pid)
            command = self._command(pid) if are_ours else None
            if command is None:
                self.hidden += 1
            elif pid != os.getpid() and len(self.others) < _PROCESSES_NAMED:
                self.others.append({"pid": pid, "command": command, "memory_bytes": each.usedGpuMemory})

    def _is_host(self) -> bool:
        try:
            return str((self._proc / "self/ns/pid").readlink()) == _HOST_NAMESPACE
        except OSError:
            return False

    def _command(self, pid: int) -> str | None:
        try:
            return (self._proc / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return None
