"""Health of AMD GPUs: a row a second for each card of this rank, by AMD SMI (the module `amdsmi`, which ROCm brings).

In the columns that NVIDIA's cards have, as far as AMD SMI has the value; what it has not is n/a. Which cards are this
rank's torch says, by their PCI address, once it runs HIP: until then none is watched. As with NVML the driver is asked
on a thread of its own.
"""

from __future__ import annotations

import importlib
import math
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rangewatch.collectors.blocking_call import BlockingCall
from rangewatch.collectors.gpu.devices import held_indices
from rangewatch.collectors.gpu.readings import Row
from rangewatch.core.options import Options
from rangewatch.recording.events import Events
from rangewatch.wire.records import RankInfo, Samples

SLOW_EVERY_S = 30.0
"""Seconds between two readings of errors and limits."""
PATIENCE_S = 1.0
"""Seconds that the collectors' thread waits: what slows a card is measured for 100 ms a card."""
SILENCE_S = 10.0
STOP_S = 1.0

MIB = 1 << 20
MICRO = 1e-6

NOT_SUPPORTED, NOT_YET_IMPLEMENTED, FAIL_LOAD_MODULE, FAIL_LOAD_SYMBOL, NO_PERM = 2, 3, 4, 5, 10
_ABSENT = (NOT_SUPPORTED, NOT_YET_IMPLEMENTED, FAIL_LOAD_MODULE, FAIL_LOAD_SYMBOL, NO_PERM)
"""`amdsmi_status_t` of a value that does not exist here."""

SLOWING = {
    "active_ppt_pwr": 0x4, "active_prochot_thrm": 0x8, "active_socket_thrm": 0x40, "active_vr_thrm": 0x40,
    "active_hbm_thrm": 0x40,
}  # fmt: skip
"""Of `amdsmi_get_violation_status`, and the bit of `throttle_reasons` that stands for it."""
NAMES = {"4": "package power limit", "8": "PROCHOT", "64": "socket, regulator or HBM too hot"}
PAGES = {"retired_pages_uncorrected": 0, "retired_pages_pending": 1}
"""Of the status of a bad page: reserved, so that nobody gets it, and to be reserved."""


def hip() -> Any | None:
    """`torch.cuda` if it runs HIP in this process, else None."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.version, "hip", None) is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda


class AmdCard:
    """One card. Made and read by the thread that talks to the driver."""

    def __init__(self, smi: Any, handle: Any, index: int, events: Events) -> None:
        self._smi, self._handle, self._events = smi, handle, events
        self._absent: set[str] = set()
        self._answered = 0
        self._slow: Row = {}
        self._columns: tuple[str, ...] = ()
        self._time_ns = 0
        self.is_lost = False
        self.uuid = str(self._read("uuid", smi.amdsmi_get_gpu_device_uuid, handle) or f"AMD-{index}")
        self.about = self._about(index)

    def read(self, step: int, *, is_slow: bool) -> Samples:
        """One row."""
        self._answered = 0
        if is_slow:
            self._absent.clear()
        row = self._fast()
        if not self._answered:
            self.lose("nothing about it can be read")
            return self.absent(step)
        if is_slow or not self._slow:
            self._read_slow()
        if self.is_lost:
            self.is_lost = False
            self._emit("gpu", "answers again", {"recovered": True})
        row |= self._slow
        self._columns = tuple(row)
        return self._samples({"step": float(step), "present": 1.0, **row})

    def absent(self, step: int) -> Samples:
        """The row of a card that does not answer."""
        return self._samples({"step": float(step), "present": 0.0, **dict.fromkeys(self._columns, math.nan)})

    def lose(self, reason: str) -> None:
        """It does not answer; reported once."""
        if not self.is_lost:
            self.is_lost = True
            self._emit("gpu_lost", f"does not answer any more: {reason}", {"reason": reason})

    def _fast(self) -> Row:
        smi, handle = self._smi, self._handle
        load = self._mapping("activity", smi.amdsmi_get_gpu_activity, handle)
        memory = self._mapping("vram", smi.amdsmi_get_gpu_vram_usage, handle)
        power = self._mapping("power", smi.amdsmi_get_power_info, handle)
        graphics = self._mapping("clock GFX", smi.amdsmi_get_clock_info, handle, smi.AmdSmiClkType.GFX)
        memory_clock = self._mapping("clock MEM", smi.amdsmi_get_clock_info, handle, smi.AmdSmiClkType.MEM)
        return {
            "utilization_gpu_percent": _number(load, "gfx_activity"),
            "utilization_memory_percent": _number(load, "umc_activity"),
            "memory_used_bytes": _number(memory, "vram_used") * MIB,
            "memory_total_bytes": _number(memory, "vram_total") * MIB,
            # Before MI300 the average alone is known, and from then on the current one.
            "power_w": _number(power, "current_socket_power", "average_socket_power"),
            "temperature_c": self._temperature("JUNCTION", "HOTSPOT", "EDGE"),
            "temperature_memory_c": self._temperature("VRAM"),
            "sm_clock_mhz": _number(graphics, "clk", "cur_clk"),  # the second before ROCm 6.2
            "memory_clock_mhz": _number(memory_clock, "clk", "cur_clk"),
            "throttle_reasons": self._reasons(),
        }

    def _temperature(self, *sensors: str) -> float:
        """Degrees C of the first of these that the card has."""
        smi = self._smi
        for sensor in sensors:
            kind = getattr(smi.AmdSmiTemperatureType, sensor, None)
            read = partial(smi.amdsmi_get_temp_metric, self._handle, kind, smi.AmdSmiTemperatureMetric.CURRENT)
            value = None if kind is None else self._read(f"temperature {sensor}", read)
            if isinstance(value, (int, float)):
                return float(value)
        return math.nan

    def _reasons(self) -> float:
        read = getattr(self._smi, "amdsmi_get_violation_status", None)  # from ROCm 6.3 on
        status = {} if read is None else self._mapping("violations", read, self._handle)
        known = {name: status[name] for name in SLOWING if isinstance(status.get(name), (bool, int))}
        if not known:
            return math.nan
        bits = 0
        for name, is_active in known.items():
            bits |= SLOWING[name] if is_active else 0
        return float(bits)

    def _read_slow(self) -> None:
        smi, handle = self._smi, self._handle
        errors = self._mapping("ecc", smi.amdsmi_get_gpu_total_ecc_count, handle)
        cap = self._mapping("cap", smi.amdsmi_get_power_cap_info, handle)
        pages = self._read("pages", smi.amdsmi_get_gpu_bad_page_info, handle)
        statuses = [each.get("status") for each in pages] if isinstance(pages, list) else None
        row = {
            "ecc_corrected_volatile": _number(errors, "correctable_count"),
            "ecc_uncorrected_volatile": _number(errors, "uncorrectable_count"),
            "power_limit_w": _number(cap, "power_cap") * MICRO,
            **{name: math.nan if statuses is None else float(statuses.count(status)) for name, status in PAGES.items()},
        }
        grown = {name: row[name] for name in row if name in _GROWING and row[name] > self._slow.get(name, math.inf)}
        for name, value in grown.items():
            self._emit("gpu", f"{_GROWING[name]} ({self._slow[name]:.0f} -> {value:.0f})", {"column": name})
        self._slow = {name: value if value == value else self._slow.get(name, value) for name, value in row.items()}

    def _about(self, index: int) -> dict[str, Any]:
        smi, handle = self._smi, self._handle
        asic = self._mapping("asic", smi.amdsmi_get_gpu_asic_info, handle)
        driver = self._mapping("driver", smi.amdsmi_get_gpu_driver_info, handle)
        known = {
            "name": _text(asic, "market_name"), "uuid": self.uuid, "serial": _text(asic, "asic_serial"),
            "pci_bus_id": self._read("bdf", smi.amdsmi_get_gpu_device_bdf, handle),
            "driver_version": _text(driver, "driver_version"), "host": socket.gethostname(), "device_index": index,
            "mapped_by": "torch", "names": {"throttle_reasons": NAMES},
        }  # fmt: skip
        return {name: value for name, value in known.items() if value is not None}

    def _mapping(self, key: str, read: Callable[..., Any], *arguments: Any) -> Mapping[str, Any]:
        value = self._read(key, read, *arguments)
        return value if isinstance(value, Mapping) else {}

    def _read(self, key: str, read: Callable[..., Any], *arguments: Any) -> Any:
        """None where there is no such value; what is not supported is asked for again with the next slow row."""
        if key in self._absent:
            return None
        try:
            value = read(*arguments)
        except self._smi.AmdSmiException as error:
            if getattr(error, "err_code", None) in _ABSENT:
                self._absent.add(key)
            return None
        self._answered += 1
        return value

    def _emit(self, kind: str, message: str, data: dict[str, Any]) -> None:
        name = f"{self.about.get('name', 'AMD GPU')} cuda:{self.about['device_index']} ({self.uuid})"
        self._events.add(kind, f"{name}: {message}", {"uuid": self.uuid, **data})

    def _samples(self, row: Row) -> Samples:
        self._time_ns = max(self._time_ns, time.time_ns())
        columns = {name: np.array([value]) for name, value in row.items()}
        return Samples("gpu", self.uuid, np.array([self._time_ns], dtype=np.int64), columns, self.about)


_GROWING = {
    "ecc_uncorrected_volatile": "uncorrectable memory errors; what was computed with them may be wrong",
    "retired_pages_uncorrected": "pages of its memory retired",
}


def _number(values: Mapping[str, Any], *names: str) -> float:
    """The first of these that is a number: AMD SMI says "N/A" for what it does not know."""
    for name in names:
        value = values.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return math.nan


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) and value and value != "N/A" else None


class AmdGpuCollector:
    """The collector `amd_gpu`."""

    name = "amd_gpu"
    help = "health of this rank's AMD GPUs through AMD SMI, a row a second and card"
    docs = "gpu_health.md"

    def __init__(self, options: Options, info: RankInfo) -> None:
        self._smi: Any = None
        self._thread: BlockingCall[list[Samples]] = BlockingCall("rangewatch-amdsmi")
        self._cards: dict[int, AmdCard] = {}
        self._is_given_up = self._is_open = False
        self._due_s = float("-inf")
        self._asked_s = 0.0
        self._events: Events

    def start(self, events: Events) -> None:
        """Nothing yet: torch has not said that there is such a card."""
        self._events = events

    def collect(self, step: int) -> Sequence[Samples]:
        """One row for each card, once torch runs HIP."""
        running = None if self._is_given_up else hip()
        if running is None or not self._is_loaded():
            return ()
        if not self._thread.is_busy:
            self._asked_s = time.monotonic()
        try:
            return self._thread.ask(partial(self._read_cards, running, step), PATIENCE_S)
        except TimeoutError:
            silent_s = time.monotonic() - self._asked_s
            if silent_s < SILENCE_S:
                return ()
            for card in self._cards.values():
                card.lose(f"the driver has not answered for {silent_s:.0f} s")
            return [card.absent(step) for card in self._cards.values()]

    def stop(self) -> None:
        """End the thread, and let go of the driver unless a call is stuck in it. torch may use it too: AMD SMI counts
        its users."""
        if self._thread.stop(STOP_S) and self._is_open:
            try:
                self._smi.amdsmi_shut_down()
            except self._smi.AmdSmiException:
                return

    def _is_loaded(self) -> bool:
        if self._smi is None:
            try:
                self._smi = importlib.import_module("amdsmi")
            except Exception as error:  # noqa: BLE001 - it loads a library of ROCm, in ways that fail in many
                hint = "install the package amdsmi of your ROCm (/opt/rocm/share/amd_smi) to record it"
                self._give_up(f"GPU health is not recorded: {hint} ({type(error).__name__}: {error})")
        return self._smi is not None

    def _read_cards(self, running: Any, step: int) -> list[Samples]:
        """On the driver's own thread."""
        is_slow = time.monotonic() >= self._due_s
        if is_slow:
            self._due_s = time.monotonic() + SLOW_EVERY_S
            if not self._open():
                return []
        if is_slow or not self._cards:
            self._find(running)
        return [card.read(step, is_slow=is_slow) for card in self._cards.values()]

    def _open(self) -> bool:
        if not self._is_open:
            try:
                self._smi.amdsmi_init()
            except self._smi.AmdSmiException as error:
                self._give_up(f"GPU health is not recorded: AMD SMI cannot be opened ({error})")
                return False
            self._is_open = True
        return True

    def _find(self, running: Any) -> None:
        """By PCI address: torch and AMD SMI number cards in their own ways."""
        smi = self._smi
        handles = {_address(smi.amdsmi_get_gpu_device_bdf(each)): each for each in smi.amdsmi_get_processor_handles()}
        for index in held_indices(running):
            properties = running.get_device_properties(index)
            if index in self._cards or not hasattr(properties, "pci_bus_id"):
                continue
            address = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
            if address in handles:
                self._cards[index] = AmdCard(self._smi, handles[address], index, self._events)

    def _give_up(self, reason: str) -> None:
        self._is_given_up = True
        self._events.add("gpu", reason, {"reason": reason})


def _address(bdf: str) -> tuple[int, ...]:
    """Domain, bus and device of "0000:c1:00.0"."""
    return tuple(int(part, 16) for part in bdf.partition(".")[0].split(":"))
