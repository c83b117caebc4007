"""What is read off a card every second: a few tens of calls of some microseconds each.

Left out, with reason: `nvmlDeviceGetPcieThroughput`, which measures for 20 ms a call (the byte counters below cost
nothing), and the counters of single clocks event reasons, whose field ids differ between drivers.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from rangewatch.collectors.nvml import NOT_FOUND, NvmlError, Reader
from rangewatch.collectors.nvml_names import THROTTLE_MASK, VIOLATIONS

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
        return {
            **self._load(),
            "power_w": read.number("nvmlDeviceGetPowerUsage", scale=1e-3),
            "power_limit_w": read.number("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
            **self._temperatures(memory_c),
            **self._clocks(),
            **{f"violation_{name}_ns": self._violation(name, number) for name, number in VIOLATIONS.items()},
            "pcie_sent_bytes_per_s": self._differences.rate("pcie_sent", time_ns, sent),
            "pcie_received_bytes_per_s": self._differences.rate("pcie_received", time_ns, received),
        }

    def forget(self) -> None:
        """Rows are missing before the next one."""
        self._differences.forget()

    def _load(self) -> Row:
        load, memory = self._reader.value("nvmlDeviceGetUtilizationRates"), memory_info(self._reader)
        return {
            "utilization_gpu_percent": math.nan if load is None else float(load.gpu),
            "utilization_memory_percent": math.nan if load is None else float(load.memory),
            "memory_used_bytes": math.nan if memory is None else float(memory.used),
            "memory_total_bytes": math.nan if memory is None else float(memory.total),
        }

    def _clocks(self) -> Row:
        reasons = clocks_event_reasons(self._reader)
        return {
            "sm_clock_mhz": self._reader.number("nvmlDeviceGetClockInfo", _SM),
            "memory_clock_mhz": self._reader.number("nvmlDeviceGetClockInfo", _MEMORY),
            "clocks_event_reasons": math.nan if reasons is None else float(reasons),
            "throttle_reasons": math.nan if reasons is None else float(reasons & THROTTLE_MASK),
        }

    def _temperatures(self, memory_c: float) -> Row:
        now_c, room_c = temperature(self._reader), self._reader.number("nvmlDeviceGetMarginTemperature")
        return {
            "temperature_c": now_c,
            "temperature_memory_c": memory_c,
            "slowdown_margin_c": self._margin("slowdown", now_c, room_c),
            "shutdown_margin_c": self._margin("shutdown", now_c, room_c),
        }

    def _margin(self, limit: str, now_c: float, room_c: float) -> float:
        # Since Ada the limits are told as distances from the highest operating temperature, and usually negative.
        below_c = self.limits.get(f"{limit}_tlimit_c", math.nan)
        if not math.isnan(room_c - below_c):
            return room_c - below_c
        return self.limits.get(f"{limit}_c", math.nan) - now_c

    def _violation(self, name: str, number: int) -> float:
        found = self._reader.value("nvmlDeviceGetViolationStatus", number)
        return math.nan if found is None else self._differences.of(name, float(found.violationTime))


def memory_info(reader: Reader) -> Any:
    """`used` and `total`, in bytes. The second version, as nvidia-smi, counts the driver's own reserve as not used."""
    version = getattr(reader.nvml.module, "nvmlMemory_v2", None)
    found = reader.value("nvmlDeviceGetMemoryInfo", version) if version else None
    return reader.value("nvmlDeviceGetMemoryInfo") if found is None else found


def temperature(reader: Reader) -> float:
    """Degrees C of the chip. The first call is deprecated, the second is not in old drivers."""
    found = reader.number("nvmlDeviceGetTemperatureV", 0)
    return reader.number("nvmlDeviceGetTemperature", 0) if math.isnan(found) else found


def clocks_event_reasons(reader: Reader) -> int | None:
    """All bits; the name before driver 535 was another."""
    found = reader.value("nvmlDeviceGetCurrentClocksEventReasons")
    return reader.value("nvmlDeviceGetCurrentClocksThrottleReasons") if found is None else int(found)


def margins_at(reader: Reader) -> Row:
    """The temperature limits of a card that it has, by name."""
    shutdown_c, slowdown_c = reader.fields((_SHUTDOWN_TLIMIT, _SLOWDOWN_TLIMIT))
    found = {
        "shutdown_tlimit_c": shutdown_c,
        "slowdown_tlimit_c": slowdown_c,
        "shutdown_c": reader.number("nvmlDeviceGetTemperatureThreshold", _SHUTDOWN),
        "slowdown_c": reader.number("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
    }
    return {name: value for name, value in found.items() if not math.isnan(value)}


def nothing_answered(reader: Reader) -> NvmlError | None:
    """Why a whole look at a card gave nothing, which is a lost card whatever the single errors were called."""
    if reader.answered:
        return None
    return reader.error or NvmlError(NOT_FOUND, "nothing about this card can be read any more")
